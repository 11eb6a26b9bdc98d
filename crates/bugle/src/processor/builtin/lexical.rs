//! Paths as text, the same on every system: POSIX, Windows drives, UNC shares (PROC-094).

use std::path::{Path, PathBuf};

/// An absolute path without `.` and `..`.
#[derive(Debug, Clone)]
pub(super) struct Lexical {
    /// `/`, `C:\`, `\\server\share\`.
    prefix: String,
    parts: Vec<String>,
    windows: bool,
}

impl Lexical {
    /// The path that `text` names, seen from `root`. `None` if that cannot be said: a relative path without a root, a drive
    /// without a directory (`C:x`), a path of the other kind of system.
    pub(super) fn parse(text: &str, root: Option<&Self>) -> Option<Self> {
        let windows =
            root.map_or_else(|| drive(text).is_some() || text.starts_with(r"\\") || cfg!(windows), |root| root.windows);
        if !windows {
            if drive(text).is_some_and(|rest| rest.starts_with(['\\', '/'])) || text.starts_with(r"\\") {
                return None;
            }
            return match (text.strip_prefix('/'), root) {
                (Some(rest), _) => Some(Self { prefix: "/".to_owned(), parts: Vec::new(), windows }.below(rest)),
                (None, Some(root)) => Some(root.clone().below(text)),
                (None, None) => None,
            };
        }
        let plain = text.replace('/', r"\");
        // What `canonicalize` puts before a path there.
        let plain = match plain.strip_prefix(r"\\?\UNC\") {
            Some(share) => format!(r"\\{share}"),
            None => plain.strip_prefix(r"\\?\").map_or(plain.clone(), str::to_owned),
        };
        if let Some(share) = plain.strip_prefix(r"\\") {
            let mut names = share.splitn(3, '\\');
            let (server, name) = (names.next()?, names.next()?);
            if server.is_empty() || name.is_empty() {
                return None;
            }
            let prefix = format!(r"\\{server}\{name}\");
            return Some(Self { prefix, parts: Vec::new(), windows }.below(names.next().unwrap_or_default()));
        }
        if let Some(rest) = drive(&plain) {
            let rest = rest.strip_prefix('\\')?;
            let prefix = format!(r"{}:\", plain[..1].to_ascii_uppercase());
            return Some(Self { prefix, parts: Vec::new(), windows }.below(rest));
        }
        let root = root?.clone();
        match plain.strip_prefix('\\') {
            Some(rest) => Some(Self { parts: Vec::new(), ..root }.below(rest)),
            None => Some(root.below(&plain)),
        }
    }

    fn below(mut self, rest: &str) -> Self {
        let separator = if self.windows { '\\' } else { '/' };
        for part in rest.split(separator) {
            match part {
                "" | "." => {}
                ".." => {
                    self.parts.pop();
                }
                part => self.parts.push(part.to_owned()),
            }
        }
        self
    }

    pub(super) fn join(&self, name: &str) -> Self {
        self.clone().below(name)
    }

    pub(super) fn parent(&self) -> Option<Self> {
        let (_, parts) = self.parts.split_last()?;
        Some(Self { parts: parts.to_vec(), ..self.clone() })
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.parts.last().map(String::as_str)
    }

    pub(super) fn depth(&self) -> usize {
        self.parts.len()
    }

    /// Whether it is `root` or below it.
    pub(super) fn is_in(&self, root: &Self) -> bool {
        self.windows == root.windows
            && self.same(&self.prefix, &root.prefix)
            && self.parts.len() >= root.parts.len()
            && root.parts.iter().zip(&self.parts).all(|(one, other)| self.same(one, other))
    }

    fn same(&self, one: &str, other: &str) -> bool {
        if self.windows { one.to_lowercase() == other.to_lowercase() } else { one == other }
    }

    /// What all spellings of it have in common: on Windows, letters of either case are one.
    pub(super) fn identity(&self) -> String {
        let text = self.to_string();
        if self.windows { text.to_lowercase() } else { text }
    }

    /// For those who look at files.
    pub(super) fn to_path(&self) -> PathBuf {
        PathBuf::from(self.to_string())
    }

    /// As people and models see it: with slashes.
    pub(super) fn shown(&self) -> String {
        let text = self.to_string();
        if self.windows { text.replace('\\', "/") } else { text }
    }
}

impl std::fmt::Display for Lexical {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.prefix, self.parts.join(if self.windows { "\\" } else { "/" }))
    }
}

/// What follows `C:`.
fn drive(text: &str) -> Option<&str> {
    let rest = text.strip_prefix(|letter: char| letter.is_ascii_alphabetic())?;
    rest.strip_prefix(':')
}

/// The path as text that [`Lexical::parse`] reads; a relative one is taken from the current directory.
pub(super) fn absolute(path: &Path) -> String {
    let text = path.to_string_lossy().into_owned();
    if Lexical::parse(&text, None).is_some() {
        return text;
    }
    std::path::absolute(path).map_or(text, |path| path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_094_drives_and_shares_are_roots() {
        for (text, shown) in [
            (r"C:\repo\x.ts", "C:/repo/x.ts"),
            (r"c:/repo/./a/../x.ts", "C:/repo/x.ts"),
            (r"\\server\share\repo\x.ts", "//server/share/repo/x.ts"),
            (r"\\server\share\..\..\x.ts", "//server/share/x.ts"),
            (r"\\?\C:\repo\x.ts", "C:/repo/x.ts"),
            (r"\\?\UNC\server\share\x", "//server/share/x"),
            (r"C:\..\..\x", "C:/x"),
            ("/repo/a/../x.ts", "/repo/x.ts"),
            ("/../x", "/x"),
        ] {
            assert_eq!(Lexical::parse(text, None).unwrap().shown(), shown, "{text}");
        }
        for text in ["C:x.ts", r"\\server", r"\\", "x.ts"] {
            assert!(Lexical::parse(text, None).is_none(), "{text}");
        }
    }

    #[test]
    fn proc_094_a_path_is_seen_from_its_root() {
        let roots = [r"C:\Repo", r"\\server\share\repo", "/repo"].map(|root| Lexical::parse(root, None).unwrap());
        let [drive, share, posix] = &roots;
        let seen =
            |text: &str, root: &Lexical| Lexical::parse(text, Some(root)).map(|path| (path.shown(), path.is_in(root)));
        assert_eq!(seen(r"pkg\x.ts", drive), Some(("C:/Repo/pkg/x.ts".into(), true)));
        assert_eq!(seen("pkg/x.ts", share), Some(("//server/share/repo/pkg/x.ts".into(), true)));
        assert_eq!(seen(r"c:\REPO\x.ts", drive), Some(("C:/REPO/x.ts".into(), true)), "letters of either case");
        assert_eq!(seen(r"D:\Repo\x.ts", drive), Some(("D:/Repo/x.ts".into(), false)));
        assert_eq!(seen(r"\x.ts", drive), Some(("C:/x.ts".into(), false)));
        assert_eq!(seen(r"\\server\other\repo\x", share), Some(("//server/other/repo/x".into(), false)));
        assert_eq!(seen("../repository/x", posix), Some(("/repository/x".into(), false)), "no prefix of letters");
        assert_eq!(seen(r"a\b", posix), Some((r"/repo/a\b".into(), true)), "a letter like any other");
        assert_eq!(seen(r"C:\repo\x.ts", posix), None);
    }
}
