//! Text on its way to a terminal: what a model wrote must not steer it (CLI-060).

/// `text` without control characters other than newline and tab. C1 controls and bidirectional overrides go too: they
/// reorder what is shown.
pub(crate) fn clean(text: &str) -> String {
    text.chars().filter(|&c| keeps(c)).collect()
}

fn keeps(c: char) -> bool {
    match c {
        '\n' | '\t' => true,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => false,
        _ => !c.is_control(),
    }
}

/// The first line of `text`, at most `width` characters, with `…` where something is missing.
pub(crate) fn short(text: &str, width: usize) -> String {
    let text = clean(text);
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() > width {
        line = line.chars().take(width.saturating_sub(1)).collect();
        line.push('…');
    }
    line
}

/// The nearest of `known` to `word`, if it is near enough to be meant.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let reach = (word.chars().count() / 3).clamp(1, 3);
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= reach)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cli_060_control_characters_of_a_model_do_not_reach_the_terminal() {
        assert_eq!(clean("a\u{1b}[31mb\r\n\tc\u{7}\u{9b}d\u{202e}e"), "a[31mb\n\tcde");
    }

    #[test]
    fn cli_003_a_slip_finds_the_word_that_was_meant() {
        assert_eq!(nearest("tll", ["ttl", "failure"]), Some("ttl"));
        assert_eq!(nearest("lisen", ["listen", "prefix"]), Some("listen"));
        assert_eq!(nearest("colour", ["ttl", "failure"]), None);
        assert_eq!(short("one\ntwo  three", 9), "one two …");
    }
}
