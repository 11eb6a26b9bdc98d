//! Expressions of numbers with `+ - * /` and brackets.

/// The most brackets and signs inside each other.
const DEPTH_MAX: usize = 64;

/// The value of an expression.
pub(super) fn evaluate(text: &str) -> Result<f64, String> {
    let mut parser = Parser { text: text.as_bytes(), at: 0, depth: 0 };
    let value = parser.sum()?;
    match parser.peek() {
        Some(byte) => Err(format!("{:?} at {} is not expected", char::from(byte), parser.at + 1)),
        None if value.is_finite() => Ok(value),
        None => Err("the result is no number; a division by zero?".into()),
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn sum(&mut self) -> Result<f64, String> {
        let mut value = self.product()?;
        loop {
            match self.peek() {
                Some(b'+') => {
                    self.at += 1;
                    value += self.product()?;
                }
                Some(b'-') => {
                    self.at += 1;
                    value -= self.product()?;
                }
                _ => return Ok(value),
            }
        }
    }

    fn product(&mut self) -> Result<f64, String> {
        let mut value = self.factor()?;
        loop {
            match self.peek() {
                Some(b'*') => {
                    self.at += 1;
                    value *= self.factor()?;
                }
                Some(b'/') => {
                    self.at += 1;
                    value /= self.factor()?;
                }
                _ => return Ok(value),
            }
        }
    }

    fn factor(&mut self) -> Result<f64, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err("too many brackets inside each other".into());
        }
        let value = match self.peek() {
            Some(b'-') => {
                self.at += 1;
                -self.factor()?
            }
            Some(b'(') => {
                self.at += 1;
                let value = self.sum()?;
                if self.peek() != Some(b')') {
                    return Err(format!("a bracket is not closed at {}", self.at + 1));
                }
                self.at += 1;
                value
            }
            Some(byte) if byte.is_ascii_digit() || byte == b'.' => {
                let start = self.at;
                while self.text.get(self.at).is_some_and(|byte| byte.is_ascii_digit() || *byte == b'.') {
                    self.at += 1;
                }
                let number = std::str::from_utf8(&self.text[start..self.at]).unwrap_or_default();
                number.parse().map_err(|_| format!("{number:?} is no number"))?
            }
            Some(_) => return Err(format!("a number is expected at {}", self.at + 1)),
            None => return Err("the expression ends where a number is expected".into()),
        };
        self.depth -= 1;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calculator_knows_order_brackets_and_its_limits() {
        for (text, value) in [("2 + 3 * 4", "14"), ("(2+3)*-4.5/ 3", "-7.5"), ("8/4/2-1", "0")] {
            assert_eq!(evaluate(text).unwrap().to_string(), value, "{text}");
        }
        for wrong in ["", "2 +", "(1", "1)", "1/0", "2 x 3", "1..2", &"(".repeat(1000)] {
            assert!(evaluate(wrong).is_err(), "{wrong}");
        }
    }
}
