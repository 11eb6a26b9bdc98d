//! Redaction of text that comes in pieces: what comes out is what redaction of the whole text gives, and no piece of a
//! match ever leaves (PROC-074).

use regex::Regex;

use super::prefix;

/// What to look for.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Its name, for people and for the default replacement.
    pub name: String,
    pattern: Regex,
    /// The most characters from a match's start within which it is recognised.
    recognised_within: usize,
    /// How many characters after a match may still make it longer.
    lookahead: usize,
    /// Of a pattern whose matches may be longer than they are recognised within: what its matches begin with.
    beginnings: Option<Regex>,
}

impl Rule {
    /// A rule; its matches are recognised within `recognised_within` characters from their start (1 to 4096), such as the
    /// length of the longest match. In a stream so much text is held back.
    ///
    /// Of a pattern with longer matches, text is held back from where a match may have begun until it has ended, or cannot
    /// be one any more, or the block of text ends. See [`Redactor`] for how much.
    ///
    /// # Errors
    /// The pattern's error, for people.
    pub fn new(name: impl Into<String>, pattern: &str, recognised_within: usize) -> Result<Self, String> {
        let mut rule = Self::recognised(name.into(), pattern, recognised_within)?;
        if prefix::longest(pattern).is_none_or(|longest| longest > rule.recognised_within) {
            rule.beginnings = Some(prefix::beginnings(pattern)?);
        }
        Ok(rule)
    }

    /// A rule whose matches are recognised so early, however long they grow.
    pub(super) fn recognised(name: String, pattern: &str, within: usize) -> Result<Self, String> {
        let pattern = Regex::new(pattern).map_err(|error| format!("the pattern is wrong: {error}"))?;
        if pattern.is_match("") {
            return Err("the pattern matches nothing at all, so it would match everywhere".to_owned());
        }
        Ok(Self { name, pattern, recognised_within: within.clamp(1, 4096), lookahead: 1, beginnings: None })
    }

    /// Lets a match grow by an optional end of so many characters.
    #[must_use]
    pub fn with_lookahead(mut self, characters: usize) -> Self {
        self.lookahead = characters.clamp(1, 4096);
        self
    }

    /// Whether the text holds a match.
    pub fn is_match(&self, text: &str) -> bool {
        self.pattern.is_match(text)
    }
}

/// Replaces matches in text that comes in pieces. Holds at most as much back as the longest rule needs, and a match that
/// is still growing, up to 64 KiB.
///
/// What may be the beginning of a match for longer than that is replaced as if it were one, with all that follows it in the
/// block.
///
/// ```
/// use bugle::processor::builtin::{Redactor, Rule};
/// let rules = vec![Rule::new("pin", "[0-9]{4}", 4)?];
/// let mut redactor = Redactor::new();
/// let mut out = redactor.push(&rules, "code 12", &|rule| format!("[{}]", rule.name));
/// out += &redactor.push(&rules, "34.", &|rule| format!("[{}]", rule.name));
/// out += &redactor.finish(&rules, &|rule| format!("[{}]", rule.name));
/// assert_eq!(out, "code [pin].");
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Redactor {
    /// The last character that has left, for word boundaries, then what is held.
    buffer: String,
    /// Where what is held begins.
    from: usize,
    /// The rule of a match that is too long to hold: it was replaced, and what still belongs to it is dropped.
    cut: Option<usize>,
    /// What may have been a match was too long to hold: nothing of the rest of the block is shown.
    closed: bool,
    /// The names of the rules that have matched.
    pub found: Vec<String>,
}

/// A match that goes on for longer than so many bytes is replaced before its end, and the rest of it is dropped.
const HELD_MAX: usize = 64 * 1024;

impl Redactor {
    /// Nothing is held.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in text; gives what may leave.
    pub fn push(&mut self, rules: &[Rule], text: &str, replace: &dyn Fn(&Rule) -> String) -> String {
        if self.closed {
            return String::new();
        }
        self.buffer.push_str(text);
        self.drain(rules, false, replace)
    }

    /// The text is over: gives what was held.
    pub fn finish(&mut self, rules: &[Rule], replace: &dyn Fn(&Rule) -> String) -> String {
        let out = self.drain(rules, true, replace);
        self.buffer.clear();
        self.from = 0;
        self.cut = None;
        self.closed = false;
        out
    }

    /// Redacts a whole text, however long.
    pub fn whole(&mut self, rules: &[Rule], text: &str, replace: &dyn Fn(&Rule) -> String) -> String {
        self.buffer.push_str(text);
        self.finish(rules, replace)
    }

    fn drain(&mut self, rules: &[Rule], over: bool, replace: &dyn Fn(&Rule) -> String) -> String {
        let mut out = String::new();
        let early = rules.iter().filter(|rule| rule.beginnings.is_none());
        let hold = early.map(|rule| rule.recognised_within + rule.lookahead).max().unwrap_or(0);
        // A match that starts before this place is fully visible.
        let safe = if over { self.buffer.len() } else { back(&self.buffer, self.from, hold) };
        let mut growing = None;
        let mut at = self.from;
        if let Some(rule) = self.cut.and_then(|cut| rules.get(cut)) {
            // What is held begins with the start of the match. If it is none any more, nothing of it is shown either.
            let found = rule.pattern.find_at(&self.buffer, at).filter(|found| found.start() == at);
            let end = found.map_or(self.buffer.len(), |found| found.end());
            if !over && found.is_some() && back(&self.buffer, at, rule.lookahead) < end {
                growing = self.cut;
            } else {
                at = end;
                self.cut = None;
            }
        }
        while at < safe && growing.is_none() {
            // From here on all may be the beginning of a match.
            let open = if over { None } else { self.beginning(rules, at) };
            let safe = open.map_or(safe, |(_, start)| start.min(safe));
            // The leftmost match; among those the first rule's.
            let next = rules
                .iter()
                .enumerate()
                .filter_map(|(place, rule)| rule.pattern.find_at(&self.buffer, at).map(|found| (place, rule, found)))
                .min_by_key(|(.., found)| found.start());
            match next {
                Some((place, rule, found)) if found.start() < safe => {
                    let grows = !over
                        && rule.beginnings.is_none()
                        && back(&self.buffer, self.from, rule.lookahead) < found.end();
                    out.push_str(&self.buffer[at..found.start()]);
                    if grows {
                        at = found.start();
                        growing = Some(place);
                        break;
                    }
                    out.push_str(&replace(rule));
                    note(&mut self.found, rule);
                    at = found.end();
                }
                _ => {
                    out.push_str(&self.buffer[at..safe]);
                    at = safe;
                    break;
                }
            }
        }
        if !over
            && growing.is_none()
            && let Some((rule, start)) = self.beginning(rules, at)
            && self.buffer.len() - start > HELD_MAX
        {
            let mut before = Self::new();
            out.push_str(&before.whole(rules, &self.buffer[at..start], replace));
            out.push_str(&replace(rule));
            before.found.push(rule.name.clone());
            let found = before.found.into_iter().filter(|name| !self.found.contains(name));
            self.found.extend(found.collect::<Vec<_>>());
            self.buffer.clear();
            self.from = 0;
            self.closed = true;
            return out;
        }
        // One character stays for the boundaries of what comes.
        let keep = self.buffer[..at].char_indices().next_back().map_or(0, |(place, _)| place);
        self.buffer.drain(..keep);
        self.from = at - keep;
        if let Some(place) = growing.filter(|_| self.buffer.len() - self.from > HELD_MAX) {
            let rule = &rules[place];
            if self.cut.is_none() {
                out.push_str(&replace(rule));
                note(&mut self.found, rule);
                self.cut = Some(place);
            }
            self.shorten(rule);
        }
        out
    }

    /// The first place from which all of what is held may be the beginning of a match of a long rule.
    fn beginning<'a>(&self, rules: &'a [Rule], at: usize) -> Option<(&'a Rule, usize)> {
        let starts = rules.iter().filter_map(|rule| {
            let found = rule.beginnings.as_ref()?.find_at(&self.buffer, at)?;
            (found.start() < self.buffer.len()).then_some((rule, found.start()))
        });
        starts.min_by_key(|(_, start)| *start)
    }

    /// Keeps of a match that is being dropped what it is recognised by, and its end.
    fn shorten(&mut self, rule: &Rule) {
        let held = &self.buffer[self.from..];
        let start = held.char_indices().nth(rule.recognised_within).map_or(self.buffer.len(), |(at, _)| self.from + at);
        let end = back(&self.buffer, start, rule.lookahead);
        self.buffer.drain(start..end);
    }
}

fn note(found: &mut Vec<String>, rule: &Rule) {
    if !found.contains(&rule.name) {
        found.push(rule.name.clone());
    }
}

/// The place `characters` before the end of `text`, but not before `from`.
fn back(text: &str, from: usize, characters: usize) -> usize {
    let mut places = text[from..].char_indices().rev();
    match characters.checked_sub(1) {
        None => text.len(),
        Some(skip) => places.nth(skip).map_or(from, |(place, _)| from + place),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::processor::builtin::preset;

    /// Compiled once: that is what takes long.
    static PRESETS: LazyLock<Vec<Rule>> = LazyLock::new(|| {
        let names = crate::processor::builtin::preset_names();
        names.iter().map(|name| preset(name).unwrap()).collect()
    });

    fn shown(rule: &Rule) -> String {
        format!("[{}]", rule.name)
    }

    fn in_pieces(rules: &[Rule], text: &str, cuts: &[usize]) -> (String, bool) {
        let mut redactor = Redactor::new();
        let (mut out, mut rest, mut leaked) = (String::new(), text, false);
        let mut pushed = String::new();
        for cut in cuts {
            let end = rest.char_indices().nth(*cut).map_or(rest.len(), |(place, _)| place);
            let (piece, later) = rest.split_at(end);
            pushed.push_str(piece);
            out.push_str(&redactor.push(rules, piece, &shown));
            rest = later;
        }
        out.push_str(&redactor.push(rules, rest, &shown));
        out.push_str(&redactor.finish(rules, &shown));
        leaked |= rules.iter().any(|rule| rule.is_match(&out));
        (out, leaked)
    }

    #[test]
    fn proc_074_a_single_rule_redacts_as_replace_all_does() {
        let rule = Rule::new("n", r"\b[0-9]{3,5}\b", 5).unwrap();
        let text = "1 123 a4567 89012 999999 77\u{e9}123";
        let expected = regex::Regex::new(r"\b[0-9]{3,5}\b").unwrap().replace_all(text, "[n]").into_owned();
        let rules = [rule];
        for size in 1..8 {
            let cuts = vec![size; 40];
            assert_eq!(in_pieces(&rules, text, &cuts).0, expected, "pieces of {size}");
        }
    }

    #[test]
    fn proc_074_a_piece_of_more_than_can_be_held_shows_no_beginning_of_a_secret() {
        let rules = [preset("github-token").unwrap()];
        let mut redactor = Redactor::new();
        let before = "a ".repeat(40_000);
        let first = redactor.push(&rules, &format!("{before}ghp_0123456789abcdefghij"), &shown);
        assert!(!first.contains("ghp_"), "{}", &first[first.len() - 30..]);
        let all = first + &redactor.push(&rules, "ABCDEFGHIJ012345 b", &shown) + &redactor.finish(&rules, &shown);
        assert_eq!(all, format!("{before}[github-token] b"));
    }

    #[test]
    fn proc_074_of_a_match_that_is_too_long_to_hold_no_rest_is_shown() {
        let rules = [preset("private-key").unwrap()];
        let body = "MIIabc+/=\n".repeat(20_000);
        let key = format!("key: -----BEGIN RSA PRIVATE KEY-----\n{body}-----END RSA PRIVATE KEY-----. ok");
        for piece in [1000, 7001, 70_001, key.len()] {
            let cuts = vec![piece; key.len() / piece];
            let (out, leaked) = in_pieces(&rules, &key, &cuts);
            assert_eq!((out.as_str(), leaked), ("key: [private-key]. ok", false), "pieces of {piece}");
        }
    }

    /// What the stream shows, what is stored.
    fn both(rules: &[Rule], text: &str, piece: usize) -> (String, String) {
        let streamed = in_pieces(rules, text, &vec![piece; text.len() / piece]).0;
        let stored = Redactor::new().whole(rules, text, &shown);
        (streamed, stored)
    }

    #[test]
    fn proc_074_a_match_longer_than_max_length_is_not_streamed_in_clear() {
        let rules = [Rule::new("note", r"(?s)<secret>.*?</secret>", 128).unwrap(), preset("email").unwrap()];
        let body = "word ".repeat(400);
        let text = format!("a <secret>{body}</secret> b ann@example.com <secret> of mine");
        for piece in [1, 7, 130, 5000] {
            let (streamed, stored) = both(&rules, &text, piece);
            assert_eq!(streamed, "a [note] b [email] <secret> of mine", "pieces of {piece}");
            assert_eq!(streamed, stored);
        }
        // It is held no longer than needed.
        let rules = [Rule::new("key", "key=[0-9]{200,};", 128).unwrap()];
        let mut redactor = Redactor::new();
        assert_eq!(redactor.push(&rules, "a key=12", &shown), "a ");
        assert_eq!(redactor.push(&rules, "34 is none", &shown), "key=1234 is none");
    }

    #[test]
    fn proc_074_what_may_be_a_match_for_too_long_is_replaced_up_to_the_end_of_the_block() {
        let rules = [Rule::new("note", r"(?s)<secret>.*?</secret>", 128).unwrap(), preset("email").unwrap()];
        let text = format!("ann@example.com <secret>{}", "word ".repeat(20_000));
        let mut redactor = Redactor::new();
        let mut out = String::new();
        for piece in text.as_bytes().chunks(1000) {
            out += &redactor.push(&rules, std::str::from_utf8(piece).unwrap(), &shown);
        }
        assert_eq!(out, "[email] [note]");
        assert_eq!(redactor.found, ["email", "note"], "a guard that blocks hears of it");
        assert_eq!(redactor.push(&rules, "more</secret> and more", &shown), "");
        assert_eq!(redactor.finish(&rules, &shown), "");
        assert_eq!(
            redactor.push(&rules, "the next block. ", &shown) + &redactor.finish(&rules, &shown),
            "the next block. "
        );
    }

    proptest! {
        #[test]
        fn proc_074_long_matches_do_not_depend_on_the_chunks(
            words in proptest::collection::vec(prop_oneof![
                Just("<s>"), Just("</s>"), Just("x"), Just(" "), Just("é"), Just("key="), Just("1234"), Just(";"), Just("ab@c.de"),
            ], 0..30),
            cuts in proptest::collection::vec(0usize..9, 0..40),
        ) {
            let rules = [
                Rule::new("s", "<s>.*</s>", 2).unwrap(),
                Rule::new("key", r"\bkey=[0-9é]+(?:;[0-9]+)*\b", 3).unwrap(),
                Rule::new("mail", r"\b[a-z]{1,9}@[a-z]{1,9}\.[a-z]{1,3}\b", 24).unwrap(),
            ];
            let text = words.concat();
            prop_assert_eq!(in_pieces(&rules, &text, &cuts).0, Redactor::new().whole(&rules, &text, &shown));
        }

        #[test]
        fn proc_074_redaction_does_not_depend_on_the_chunks(
            words in proptest::collection::vec(prop_oneof![
                Just("ann@example.com".to_owned()), Just("4111 1111 1111 1111".to_owned()), Just("555-12-3456".to_owned()),
                Just("ghp_0123456789abcdefghijABCDEFGHIJ012345".to_owned()), Just("AKIAIOSFODNN7EXAMPLE".to_owned()),
                Just("-----BEGIN PRIVATE KEY-----\nMIIabc+/=\nQQ==\n-----END PRIVATE KEY-----".to_owned()),
                Just("sk-abcdefghijklmnopqrstuvwxyz0123456789".to_owned()), Just("10.0.0.255".to_owned()),
                "[a-z0-9@. -]{0,12}", Just("é".to_owned()), Just(" ".to_owned()), Just(".".to_owned()),
            ], 0..12),
            cuts in proptest::collection::vec(0usize..9, 0..60),
        ) {
            let text = words.concat();
            let whole = Redactor::new().whole(&PRESETS, &text, &shown);
            let (pieces, _) = in_pieces(&PRESETS, &text, &cuts);
            prop_assert_eq!(pieces, whole);
            // Apart from each other, words have nothing else to match with: no secret is left.
            let (shown, leaked) = in_pieces(&PRESETS, &words.join(" | "), &cuts);
            prop_assert!(!leaked, "{}", shown);
        }

        #[test]
        fn proc_074_no_piece_of_a_secret_leaves(cut in 0usize..40, before in "[a-z ]{0,20}") {
            let secret = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
            let rules = [preset("github-token").unwrap()];
            let mut redactor = Redactor::new();
            let text = format!("{before} {secret}");
            let end = (before.len() + 1 + cut).min(text.len());
            let shown_first = redactor.push(&rules, &text[..end], &shown);
            prop_assert!(!shown_first.contains("ghp_"), "{}", shown_first);
            let mut all = shown_first + &redactor.push(&rules, &text[end..], &shown);
            all += &redactor.finish(&rules, &shown);
            prop_assert_eq!(all, format!("{before} [github-token]"));
        }
    }
}
