//! Makes text of input canonical: NFKC, whitespace, control characters (PROC-101).

use async_trait::async_trait;
use unicode_normalization::UnicodeNormalization;

use crate::{
    message::Part,
    processor::{Context, Hook, HookSet, Input, Outcome, Processor},
};

/// Normalises the text parts of input.
///
/// ```
/// use bugle::processor::builtin::UnicodeNormaliser;
/// assert_eq!(UnicodeNormaliser::default().apply("  ﬁve   \u{ff21}\n\n\nb "), "five A\nb");
/// ```
#[derive(Debug, Clone)]
pub struct UnicodeNormaliser {
    /// Runs of spaces become one, runs of line breaks one. Default: true.
    pub collapse_whitespace: bool,
    /// No whitespace at the ends. Default: true.
    pub trim: bool,
    /// Control characters but tab and line break are taken out. Default: false.
    pub strip_control_chars: bool,
    /// Joiners and variation selectors of emojis stay when control characters go. Default: true.
    pub preserve_emojis: bool,
}

impl Default for UnicodeNormaliser {
    fn default() -> Self {
        Self { collapse_whitespace: true, trim: true, strip_control_chars: false, preserve_emojis: true }
    }
}

impl UnicodeNormaliser {
    /// The text as it is to be.
    pub fn apply(&self, text: &str) -> String {
        let mut out: String = text.nfkc().collect();
        if self.strip_control_chars {
            out.retain(|c| {
                let joins = matches!(c, '\u{200d}' | '\u{fe0e}' | '\u{fe0f}');
                let invisible = matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}'
                    | '\u{feff}' | '\u{fe00}'..='\u{fe0f}');
                matches!(c, '\n' | '\t' | '\r') || (joins && self.preserve_emojis) || (!c.is_control() && !invisible)
            });
        }
        if self.collapse_whitespace {
            out = collapse(&out);
        }
        if self.trim {
            out = out.trim().to_owned();
        }
        out
    }
}

/// Runs of whitespace become one space, or one line break if they hold one.
fn collapse(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut pending: Option<char> = None;
    for c in text.chars() {
        if c.is_whitespace() {
            let breaks = matches!(c, '\n' | '\r');
            pending = Some(if breaks || pending == Some('\n') { '\n' } else { ' ' });
            continue;
        }
        out.extend(pending.take());
        out.push(c);
    }
    out.extend(pending);
    out
}

#[async_trait]
impl Processor for UnicodeNormaliser {
    fn id(&self) -> &'static str {
        "unicode-normalizer"
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::Input])
    }

    async fn process_input(&self, _: &mut Context<'_>, input: &mut Input) -> Outcome {
        for message in &mut input.messages {
            for part in &mut message.content.parts {
                if let Part::Text(text) = part {
                    text.text = self.apply(&text.text);
                }
            }
            if let Some(text) = &mut message.content.content {
                *text = self.apply(text);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_101_defaults_collapse_and_trim_and_keep_controls() {
        let normal = UnicodeNormaliser::default();
        assert_eq!(normal.apply(" a \t b\r\n\r\n\u{7}c "), "a b\n\u{7}c");
        assert_eq!(normal.apply("Ａ\u{301}"), "Á");
        let strict = UnicodeNormaliser { strip_control_chars: true, ..normal.clone() };
        assert_eq!(strict.apply("a\u{7}\u{202e}b 👨\u{200d}👩"), "ab 👨\u{200d}👩");
        let bare = UnicodeNormaliser { preserve_emojis: false, ..strict };
        assert_eq!(bare.apply("👨\u{200d}👩"), "👨👩");
        let raw = UnicodeNormaliser { collapse_whitespace: false, trim: false, ..normal };
        assert_eq!(raw.apply(" a  b "), " a  b ");
    }
}
