//! Where the end of a text may be the beginning of a match: from a pattern, the pattern of all its beginnings.

use regex::{Regex, RegexBuilder};
use regex_syntax::hir::{Hir, HirKind, Repetition};

/// Patterns nested deeper are refused.
const NEST_MAX: u32 = 1000;
/// What a compiled pattern may take, in bytes.
const SIZE_MAX: usize = 32 * 1024 * 1024;

/// What `pattern` matches at most, in bytes. `None` = without end.
pub(super) fn longest(pattern: &str) -> Option<usize> {
    regex_syntax::parse(pattern).ok()?.properties().maximum_len()
}

/// Matches, up to the end of a text, what some match of `pattern` begins with.
///
/// # Errors
/// What is wrong, for people.
pub(super) fn beginnings(pattern: &str) -> Result<Regex, String> {
    let parsed = regex_syntax::parse(pattern).map_err(|error| format!("the pattern is wrong: {error}"))?;
    let text = format!("(?:{})\\z", beginning(&parsed));
    let made = RegexBuilder::new(&text).nest_limit(NEST_MAX).size_limit(SIZE_MAX).build();
    made.map_err(|error| format!("the pattern is too large for a stream: {error}"))
}

fn beginning(hir: &Hir) -> Hir {
    let maybe = |hir: Hir| Hir::alternation(vec![hir, Hir::empty()]);
    match hir.kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(literal) => match std::str::from_utf8(&literal.0) {
            Ok(text) => text.chars().rev().fold(Hir::empty(), |rest, c| {
                let c = Hir::literal(c.encode_utf8(&mut [0; 4]).as_bytes());
                maybe(Hir::concat(vec![c, rest]))
            }),
            Err(_) => maybe(hir.clone()),
        },
        HirKind::Class(_) | HirKind::Look(_) => maybe(hir.clone()),
        HirKind::Repetition(Repetition { max: Some(0), .. }) => Hir::empty(),
        HirKind::Repetition(repetition) => {
            let whole = Repetition {
                min: 0,
                max: repetition.max.map(|max| max - 1),
                greedy: repetition.greedy,
                sub: Box::new(without_groups(&repetition.sub)),
            };
            Hir::concat(vec![Hir::repetition(whole), beginning(&repetition.sub)])
        }
        HirKind::Capture(group) => beginning(&group.sub),
        HirKind::Concat(parts) => {
            let mut parts = parts.iter().rev();
            let last = parts.next().map_or_else(Hir::empty, beginning);
            parts.fold(last, |rest, part| {
                Hir::alternation(vec![Hir::concat(vec![without_groups(part), rest]), beginning(part)])
            })
        }
        HirKind::Alternation(parts) => Hir::alternation(parts.iter().map(beginning).collect()),
    }
}

/// The same without groups: a name may stand only once.
fn without_groups(hir: &Hir) -> Hir {
    let all = |parts: &[Hir]| parts.iter().map(without_groups).collect();
    match hir.kind() {
        HirKind::Capture(group) => without_groups(&group.sub),
        HirKind::Repetition(repetition) => {
            Hir::repetition(Repetition { sub: Box::new(without_groups(&repetition.sub)), ..repetition.clone() })
        }
        HirKind::Concat(parts) => Hir::concat(all(parts)),
        HirKind::Alternation(parts) => Hir::alternation(all(parts)),
        _ => hir.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_074_where_a_match_may_begin() {
        for (pattern, text, from) in [
            ("BEGIN.*END", "a BEG", Some(2)),
            ("BEGIN.*END", "a BEGIN and so on", Some(2)),
            ("BEGIN.*END", "a BEGIN and\nso on", None),
            (r"\bkey=(?<name>[a-z]+)(;(?:x|yz){2,3})?", "a key=ab;yzx", Some(2)),
            (r"\bkey=(?<name>[a-z]+)(;(?:x|yz){2,3})?", "a key=ab;z", None),
            (r"\bkey=(?<name>[a-z]+)", "monkey=ab", None),
            ("é{3}ü", "x éé", Some(2)),
            ("(?i)secret: [0-9]{300}!", "the SECRET: 123", Some(4)),
            (r"foo\b", "a foo", Some(2)),
            (r"foo\b", "a foo ", None),
        ] {
            let found = beginnings(pattern).unwrap().find(text).map(|found| found.start());
            assert_eq!(found.filter(|from| *from < text.len()), from, "{pattern} in {text}");
        }
        assert_eq!((longest("a{3}b?"), longest("a+")), (Some(4), None));
    }
}
