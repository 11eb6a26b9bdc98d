//! `bugle state`: tells the state of something that changes (STATE §5).

use bugle::{json::json, signal::StateInput};

use super::{Session, connect::Connection, follow, input, notify, send};
use crate::{args::State, exit::Failure};

pub(super) async fn run(args: State, session: &Session) -> Result<u8, Failure> {
    let hint = "git branch --show-current | bugle state branch";
    let text = input::text(args.text.as_deref(), true).await?;
    let text = text.ok_or_else(|| Failure::usage("say what the state is").hint(hint))?;
    let routing = send::routing(&args.routing)?;
    let key = args.key.unwrap_or_else(|| text.clone());
    let mut state =
        if args.delta { StateInput::delta(args.lane, key, text) } else { StateInput::snapshot(args.lane, key, text) };
    state.value = args.value.as_deref().map(|value| notify::json_flag("--value", value)).transpose()?;
    state.attributes = input::attributes(&args.attributes)?;
    state.tag_name = args.tag;
    let connection = Connection::new(&args.target, session)?;
    let thread = connection.thread().await?;
    match thread.send_state(&state, &routing).await {
        Ok(Some(accepted)) => follow::accepted_only(&accepted, session),
        Ok(None) if session.out.json => {
            session.out.json_line(&json!({"type": "skipped", "reason": "unchanged"}));
            Ok(0)
        }
        Ok(None) => {
            session.out.line("unchanged");
            Ok(0)
        }
        Err(error) if error.status() == Some(404) => {
            let failure = Failure::from(error);
            Err(failure.hint(format!("a thread has states once it exists: bugle send -t {} \"hello\"", thread.id())))
        }
        Err(error) => Err(error.into()),
    }
}
