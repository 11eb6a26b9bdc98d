//! What a model gets to read of a long result (R42).

/// `text`, if it has at most `max_bytes`; else its start, a line that says how many bytes are missing, and its end.
///
/// The answer never has more than `max_bytes` bytes and no letter is split. A limit too small for the line gives the
/// start alone. What clients and stores get is not cut: this is for prompts only.
pub fn limit_for_model(text: &str, max_bytes: usize) -> String {
    if text.len() <= max_bytes {
        return text.to_owned();
    }
    // Fewer bytes are missing than there are, so the real line is no longer than this one.
    let Some(room) = max_bytes.checked_sub(line(text.len()).len()) else {
        return text[..floor(text, max_bytes)].to_owned();
    };
    let head = floor(text, room.div_ceil(2));
    let tail = ceil(text, text.len() - room / 2);
    format!("{}{}{}", &text[..head], line(tail - head), &text[tail..])
}

fn line(missing: usize) -> String {
    format!("\n[{missing} bytes left out]\n")
}

fn floor(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn ceil(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r42_a_long_result_keeps_start_end_and_the_count_of_what_is_missing() {
        let text = format!("first {} last", "æ".repeat(1_500_000));
        let cut = limit_for_model(&text, 65_536);
        assert!(cut.len() <= 65_536 && cut.len() > 65_500, "{}", cut.len());
        assert!(cut.starts_with("first æ") && cut.ends_with("æ last"));
        let said = cut.lines().find_map(|line| line.strip_prefix('[')?.strip_suffix(" bytes left out]")).unwrap();
        let kept = cut.len() - line(said.parse().unwrap()).len();
        assert_eq!(said, (text.len() - kept).to_string());
    }

    #[test]
    fn r42_a_short_result_is_left_alone() {
        assert_eq!(limit_for_model("æøå", 6), "æøå");
        assert_eq!(limit_for_model("", 0), "");
    }

    proptest::proptest! {
        #[test]
        fn r42_the_limit_holds_for_any_text(text in "\\PC{0,80}", max in 0usize..200) {
            proptest::prop_assert!(limit_for_model(&text, max).len() <= max);
        }
    }
}
