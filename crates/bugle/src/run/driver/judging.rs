//! Rows that were stored without a run, judged by the first run that reads them (rulings 34, 35).

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::{processor::Hook, run::guard::guard_stored};

impl Driver {
    /// Judges what this run has read of the thread and no guard has seen: `persist` starts no run, so nobody judged it then.
    /// What is refused is marked, and no prompt has it. `Err` = given up.
    pub(super) async fn judge_stored(&mut self) -> Result<(), Cut> {
        if !self.hooks.runner.has(Hook::Input) {
            return Ok(());
        }
        let rows = self.machine.transcript().messages().iter();
        let unjudged: Vec<StoredMessage> = rows.filter(|row| row.is_unjudged()).cloned().collect();
        for row in unjudged {
            for judged in self.judge_row(row).await? {
                self.machine.transcript_mut().rewrite(judged);
            }
        }
        Ok(())
    }

    /// A stored row as the guards have left it, and what they have added.
    pub(super) async fn judge_row(&mut self, row: StoredMessage) -> Result<Vec<StoredMessage>, Cut> {
        let AtDesk { runner, mut desk, mut watch } = self.at_desk();
        let judged = guard_stored(runner, &mut desk, &mut watch, row.clone()).await;
        if self.shared.abort.is_cancelled() {
            // Nobody can tell an answer from a stop: the next run asks again.
            return Ok(vec![row]);
        }
        let (mut rows, refused) = judged?;
        for row in &mut rows {
            row.mark_judged();
            if let Some(refused) = &refused {
                row.mark_blocked(&refused.reason, &refused.processor_id);
            }
        }
        Ok(rows)
    }
}
