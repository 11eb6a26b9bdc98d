//! Shows the model the instruction files of the places its tools touch (PROC §9).

use std::{
    collections::HashSet,
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;

use super::{
    estimate_tokens,
    lexical::{Lexical, absolute},
};
use crate::{
    agent::RequestContext,
    json::{Object, Value, json},
    message::{Part, Role, StoredMessage, ToolState},
    processor::{Context, Hook, HookSet, InputStep, OnError, Outcome, Processor},
    signal::{Attributes, Signal, SignalInput},
};

/// Names of instruction files, best first (PROC-091).
const NAMES: [&str; 3] = ["AGENTS.md", "CLAUDE.md", "CONTEXT.md"];
/// Arguments that name a path (PROC-090).
const PATH_FIELDS: [&str; 7] = ["path", "file", "filePath", "target", "targetPath", "dest", "destination"];
/// The `type` attribute of a reminder.
const KIND: &str = "dynamic-agents-md";
/// The most files that one step shows (PROC-096).
const PER_STEP: usize = 4;

/// How files are looked at. Methods may block; they are called away from the runtime's threads.
pub trait InstructionReader: Send + Sync {
    /// Whether a file is there.
    fn exists(&self, path: &Path) -> bool;
    /// Whether it is a directory.
    fn is_directory(&self, path: &Path) -> bool;
    /// Its text; `None` if it cannot be read.
    fn read(&self, path: &Path) -> Option<String>;
    /// What two paths of one file have in common. Default: the path itself, which is absolute and without `..`; a reader of
    /// real files should give the real path, so that links that leave the root are seen.
    fn identity(&self, path: &Path) -> PathBuf {
        path.to_owned()
    }
}

/// Files of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalReader;

impl InstructionReader for LocalReader {
    fn exists(&self, path: &Path) -> bool {
        path.is_file()
    }
    fn is_directory(&self, path: &Path) -> bool {
        path.is_dir()
    }
    fn read(&self, path: &Path) -> Option<String> {
        fs::read_to_string(path).ok()
    }
    fn identity(&self, path: &Path) -> PathBuf {
        fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
    }
}

type Enabled = Arc<dyn Fn(&RequestContext) -> bool + Send + Sync>;
type ReaderFor = Arc<dyn Fn(&RequestContext) -> Option<Arc<dyn InstructionReader>> + Send + Sync>;

/// Adds a reminder with the text of `AGENTS.md` (or `CLAUDE.md`, `CONTEXT.md`) when a tool has touched a path below it.
/// Each file is shown once per thread, at most four a step, outermost first. Nothing outside of the root is read.
///
/// ```
/// use bugle::processor::builtin::AgentsMd;
/// let injector = AgentsMd::new("/repo").max_tokens(2000);
/// ```
#[derive(Clone)]
pub struct AgentsMd {
    root: PathBuf,
    max_tokens: usize,
    reminder_text: Option<String>,
    ignored: Vec<PathBuf>,
    nearest_only: bool,
    enabled: Option<Enabled>,
    reader: Arc<dyn InstructionReader>,
    reader_for: Option<ReaderFor>,
}

impl fmt::Debug for AgentsMd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentsMd").field("root", &self.root).finish_non_exhaustive()
    }
}

impl AgentsMd {
    /// Files below `root`; relative paths of tools are taken from there (PROC-095).
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            max_tokens: 1000,
            reminder_text: None,
            ignored: Vec::new(),
            nearest_only: false,
            enabled: None,
            reader: Arc::new(LocalReader),
            reader_for: None,
        }
    }

    /// The most estimated tokens of one file; default 1000. What is longer is cut at a line's end.
    #[must_use]
    pub fn max_tokens(mut self, tokens: usize) -> Self {
        self.max_tokens = tokens.max(1);
        self
    }

    /// Shown in the place of a file that is empty or cannot be read; without, nothing is.
    #[must_use]
    pub fn reminder_text(mut self, text: impl Into<String>) -> Self {
        self.reminder_text = Some(text.into());
        self
    }

    /// Files that are never shown.
    #[must_use]
    pub fn ignored(mut self, paths: Vec<PathBuf>) -> Self {
        self.ignored = paths;
        self
    }

    /// Only the nearest file of a path, and one file a step, as the reference does (PROC-092).
    #[must_use]
    pub fn nearest_only(mut self) -> Self {
        self.nearest_only = true;
        self
    }

    /// Works only where `enabled` says so.
    #[must_use]
    pub fn enabled_if(mut self, enabled: impl Fn(&RequestContext) -> bool + Send + Sync + 'static) -> Self {
        self.enabled = Some(Arc::new(enabled));
        self
    }

    /// Another way to look at files.
    #[must_use]
    pub fn reader(mut self, reader: Arc<dyn InstructionReader>) -> Self {
        self.reader = reader;
        self
    }

    /// A way to look at files that is chosen each step; `None` = [`Self::reader`]'s (PROC-094).
    #[must_use]
    pub fn reader_for(
        mut self,
        choose: impl Fn(&RequestContext) -> Option<Arc<dyn InstructionReader>> + Send + Sync + 'static,
    ) -> Self {
        self.reader_for = Some(Arc::new(choose));
        self
    }

    /// The files to show now, with their texts, outermost first.
    fn find(&self, touched: &[String], shown: &HashSet<String>) -> Vec<(Lexical, String)> {
        let Some(root) = Lexical::parse(&absolute(&self.root), None) else { return Vec::new() };
        let real_root = self.identity(&root);
        let identity_of = |text: &str| Some(self.identity(&Lexical::parse(text, Some(&root))?).identity());
        let known: HashSet<String> = shown.iter().filter_map(|path| identity_of(path)).collect();
        let ignored = self.ignored.iter().filter_map(|path| identity_of(&path.to_string_lossy()));
        let ignored: HashSet<String> = ignored.collect();
        let limit = if self.nearest_only { 1 } else { PER_STEP };
        let mut found: Vec<(Lexical, String, String)> = Vec::new();
        for path in touched.iter().filter_map(|path| Lexical::parse(path, Some(&root))) {
            let mut files = self.files_for(&path, &root);
            if self.nearest_only {
                files.drain(..files.len().saturating_sub(1));
            }
            for file in files {
                if found.len() == limit {
                    break;
                }
                let real = self.identity(&file);
                // Symlinks that leave the root are not followed (PROC-095).
                let outside = !real.is_in(&real_root);
                let identity = real.identity();
                let new = !known.contains(&identity) && !found.iter().any(|(_, held, _)| *held == identity);
                if outside || !new || ignored.contains(&identity) {
                    continue;
                }
                if let Some(text) = self.text_of(&file.to_path()) {
                    found.push((file, identity, text));
                }
            }
            if found.len() == limit {
                break;
            }
        }
        found.sort_by_key(|(file, _, _)| file.depth());
        found.into_iter().map(|(file, _, text)| (file, text)).collect()
    }

    /// What the reader says that the file really is.
    fn identity(&self, path: &Lexical) -> Lexical {
        let real = self.reader.identity(&path.to_path());
        Lexical::parse(&real.to_string_lossy(), None).unwrap_or_else(|| path.clone())
    }

    /// The instruction files that hold for a path, outermost first.
    fn files_for(&self, path: &Lexical, root: &Lexical) -> Vec<Lexical> {
        if !path.is_in(root) {
            return Vec::new();
        }
        let is_instructions =
            path.name().is_some_and(|name| NAMES.iter().any(|known| known.eq_ignore_ascii_case(name)));
        if is_instructions && self.nearest_only {
            return vec![path.clone()];
        }
        let mut directory = if self.reader.is_directory(&path.to_path()) { Some(path.clone()) } else { path.parent() };
        let mut files = Vec::new();
        while let Some(here) = directory.filter(|here| here.is_in(root)) {
            let mut names = NAMES.iter().map(|name| here.join(name));
            files.extend(names.find(|file| self.reader.exists(&file.to_path())));
            directory = here.parent();
        }
        files.reverse();
        files
    }

    fn text_of(&self, file: &Path) -> Option<String> {
        let text = self.reader.read(file).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        match text {
            Some(text) => Some(cut(&text, self.max_tokens)),
            None => self.reminder_text.clone(),
        }
    }
}

/// The text up to a number of tokens, whole lines.
fn cut(text: &str, max_tokens: usize) -> String {
    if estimate_tokens(text) <= max_tokens {
        return text.to_owned();
    }
    let mut kept = String::new();
    for line in text.lines() {
        if estimate_tokens(&kept) + estimate_tokens(line) + 1 > max_tokens {
            break;
        }
        kept.push_str(line);
        kept.push('\n');
    }
    if kept.is_empty() {
        kept = text.chars().take(max_tokens * 4).collect();
    }
    format!("{}\n[cut: the file goes on]", kept.trim_end())
}

/// The paths that finished calls have touched, newest first.
fn touched(messages: &[StoredMessage]) -> Vec<String> {
    let mut paths: Vec<String> = Vec::new();
    let parts = messages.iter().rev().flat_map(|message| message.content.parts.iter().rev());
    for part in parts {
        let Part::ToolInvocation(call) = part else { continue };
        let call = &call.tool_invocation;
        if call.state != ToolState::Result {
            continue;
        }
        let parsed;
        let args = match &call.args {
            Value::String(text) => {
                parsed = serde_json::from_str::<Value>(text).unwrap_or_default();
                &parsed
            }
            args => args,
        };
        for field in PATH_FIELDS {
            if let Some(path) = args.get(field).and_then(Value::as_str).filter(|path| !path.trim().is_empty())
                && !paths.iter().any(|known| known == path)
            {
                paths.push(path.to_owned());
            }
        }
    }
    paths
}

/// The files that the conversation shows already (PROC-092).
fn shown(messages: &[StoredMessage]) -> HashSet<String> {
    let mut shown = HashSet::new();
    for message in messages.iter().filter(|message| matches!(message.role, Role::Signal | Role::User)) {
        if let Some(signal) = Signal::from_stored(message) {
            let of_kind = |at: Option<&Value>| at.and_then(Value::as_str) == Some(KIND);
            let metadata = signal.metadata.as_ref();
            let attributes = signal.attributes.as_ref();
            if of_kind(metadata.and_then(|metadata| metadata.get("type"))) {
                shown.extend(metadata.and_then(|metadata| metadata.get("path")?.as_str()).map(str::to_owned));
            }
            if of_kind(attributes.and_then(|attributes| attributes.get("type"))) {
                shown.extend(attributes.and_then(|attributes| attributes.get("path")?.as_str()).map(str::to_owned));
            }
        }
        let text = message.joined_text();
        let mut rest = text.as_str();
        while let Some(at) = rest.find("type=\"dynamic-agents-md\"") {
            rest = &rest[at + 1..];
            let tag = rest.split('>').next().unwrap_or_default();
            let path = tag.split("path=\"").nth(1).and_then(|after| after.split('"').next());
            shown.extend(path.map(|path| html_escape::decode_html_entities(path).into_owned()));
        }
    }
    shown
}

fn reminder(path: &Lexical, text: String) -> SignalInput {
    // Also from Windows, paths are shown with slashes (PROC-094).
    let path = path.shown();
    let attributes: Attributes = [("type".to_owned(), json!(KIND)), ("path".to_owned(), json!(path))].into();
    let mut metadata = Object::new();
    metadata.insert("path".to_owned(), json!(path));
    metadata.insert("type".to_owned(), json!(KIND));
    SignalInput { attributes: Some(attributes), metadata: Some(metadata), ..SignalInput::new("reactive", text) }
}

#[async_trait]
impl Processor for AgentsMd {
    fn id(&self) -> &'static str {
        "agents-md-injector"
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::InputStep])
    }

    fn on_error(&self) -> OnError {
        OnError::Pass
    }

    async fn process_input_step(&self, cx: &mut Context<'_>, _: &mut InputStep) -> Outcome {
        if self.enabled.as_ref().is_some_and(|enabled| !enabled(cx.request_context())) {
            return Ok(());
        }
        let touched = touched(cx.messages());
        if touched.is_empty() {
            return Ok(());
        }
        let shown = shown(cx.messages());
        let mut this = self.clone();
        if let Some(reader) = self.reader_for.as_ref().and_then(|choose| choose(cx.request_context())) {
            this.reader = reader;
        }
        // Files are looked at away from the runtime's threads.
        let found = tokio::task::spawn_blocking(move || this.find(&touched, &shown)).await.unwrap_or_default();
        for (path, text) in found {
            cx.send_signal(reminder(&path, text)).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    struct Files(HashMap<&'static str, &'static str>);

    impl InstructionReader for Files {
        fn exists(&self, path: &Path) -> bool {
            self.0.contains_key(path.to_str().unwrap())
        }
        fn is_directory(&self, path: &Path) -> bool {
            path.extension().is_none()
        }
        fn read(&self, path: &Path) -> Option<String> {
            self.0.get(path.to_str().unwrap()).map(|text| (*text).to_owned())
        }
    }

    fn injector() -> AgentsMd {
        let files = HashMap::from([
            ("/AGENTS.md", "outside"),
            ("/repo/AGENTS.md", "root"),
            ("/repo/pkg/AGENTS.md", "pkg <rules> & more"),
            ("/repo/pkg/CLAUDE.md", "second choice"),
            ("/repo/doc/CLAUDE.md", "doc"),
            ("/repo/empty/AGENTS.md", "  \n"),
        ]);
        AgentsMd::new("/repo").reader(Arc::new(Files(files)))
    }

    fn find(injector: &AgentsMd, touched: &[&str], shown: &[&str]) -> Vec<String> {
        let touched: Vec<String> = touched.iter().map(|path| (*path).to_owned()).collect();
        let found = injector.find(&touched, &shown.iter().map(|path| (*path).to_owned()).collect());
        found.into_iter().map(|(path, _)| path.shown()).collect()
    }

    #[test]
    fn proc_096_all_files_up_to_the_root_outermost_first_and_095_nothing_outside() {
        let all = injector();
        assert_eq!(find(&all, &["pkg/x.ts"], &[]), ["/repo/AGENTS.md", "/repo/pkg/AGENTS.md"]);
        assert_eq!(find(&all, &["pkg/x.ts"], &["/repo/AGENTS.md"]), ["/repo/pkg/AGENTS.md"]);
        assert_eq!(find(&all, &["/etc/passwd", "../x.ts", "pkg/../../x"], &[]), [""; 0]);
        assert_eq!(find(&all, &["doc/a.md"], &["/repo/AGENTS.md"]), ["/repo/doc/CLAUDE.md"]);
        assert_eq!(find(&all, &["empty/a.md"], &["/repo/AGENTS.md"]), [""; 0]);
        let told = all.clone().reminder_text("read it");
        assert_eq!(find(&told, &["empty/a.md"], &["/repo/AGENTS.md"]), ["/repo/empty/AGENTS.md"]);
        let ignoring = all.ignored(vec!["AGENTS.md".into()]);
        assert_eq!(find(&ignoring, &["pkg/x.ts"], &[]), ["/repo/pkg/AGENTS.md"]);
    }

    #[test]
    fn proc_092_nearest_only_one_file_a_step() {
        let nearest = injector().nearest_only();
        // Newest first: y.ts was read last.
        let touched = ["/repo/y.ts", "/repo/pkg/x.ts"];
        assert_eq!(find(&nearest, &touched, &[]), ["/repo/AGENTS.md"]);
        assert_eq!(find(&nearest, &touched, &["/repo/AGENTS.md"]), ["/repo/pkg/AGENTS.md"]);
        assert_eq!(find(&nearest, &touched, &["/repo/AGENTS.md", "/repo/pkg/AGENTS.md"]), [""; 0]);
        assert_eq!(find(&nearest, &["pkg/agents.md"], &[]), [""; 0], "named itself, but not there");
        assert_eq!(find(&nearest, &["pkg/CLAUDE.md"], &[]), ["/repo/pkg/CLAUDE.md"], "PROC-091: named itself");
    }

    #[test]
    fn proc_091_the_nearest_file_is_the_first_of_its_directory_by_order_of_names() {
        let nearest = injector().nearest_only();
        assert_eq!(find(&nearest, &["pkg/deep/x.ts"], &[]), ["/repo/pkg/AGENTS.md"]);
        assert_eq!(find(&nearest, &["doc/x.ts"], &[]), ["/repo/doc/CLAUDE.md"]);
    }

    #[test]
    fn proc_094_paths_are_shown_with_slashes_whatever_the_system() {
        let path = Lexical::parse(r"C:\repo\pkg\AGENTS.md", None).unwrap();
        let shown = reminder(&path, "x".into());
        assert_eq!(shown.attributes.unwrap()["path"], json!("C:/repo/pkg/AGENTS.md"));
        assert_eq!(shown.metadata.unwrap()["path"], json!("C:/repo/pkg/AGENTS.md"));
    }

    #[test]
    fn proc_094_drive_and_share_roots_are_walked_as_posix_ones() {
        for (root, out) in [(r"C:\repo", "C:/repo"), (r"\\server\share\repo", "//server/share/repo")] {
            let files = [r"\AGENTS.md", r"\pkg\AGENTS.md", r"\..\AGENTS.md"].map(|file| format!("{root}{file}"));
            let files: HashMap<&'static str, &'static str> =
                files.into_iter().map(|file| (&*file.leak(), "rules")).collect();
            let injector = AgentsMd::new(root).reader(Arc::new(Files(files)));
            let all = [format!("{out}/AGENTS.md"), format!("{out}/pkg/AGENTS.md")];
            for touched in [r"pkg\x.ts".to_owned(), "pkg/x.ts".to_owned(), format!(r"{root}\pkg\x.ts")] {
                assert_eq!(find(&injector, &[&touched], &[]), all, "{touched}");
            }
            assert_eq!(find(&injector, &["pkg/x.ts"], &[&all[0]]), all[1..], "shown with slashes, known again");
            for touched in [r"..\x.ts", r"D:\repo\x.ts", r"\\server\other\repo\x.ts", "C:x.ts"] {
                let outside = find(&injector, &[touched], &[]);
                assert_eq!(outside, [""; 0], "{touched}");
            }
        }
    }

    #[test]
    fn proc_093_long_files_are_cut_at_a_line() {
        let text = "first line\nsecond line\nthird line";
        assert_eq!(cut(text, 100), text);
        assert_eq!(cut(text, 6), "first line\n[cut: the file goes on]");
        let signal = reminder(&Lexical::parse("/repo/pkg/AGENTS.md", None).unwrap(), "pkg <rules> & more".into());
        let signal = signal.normalise(|| "s".into(), Default::default()).unwrap();
        let crate::model::PromptMessage::User { content, .. } = signal.to_prompt() else { panic!() };
        let crate::model::UserPart::Text { text, .. } = &content[0] else { panic!() };
        assert_eq!(
            text,
            r#"<system-reminder type="dynamic-agents-md" path="/repo/pkg/AGENTS.md">pkg &lt;rules&gt; &amp; more</system-reminder>"#
        );
    }

    #[test]
    #[cfg(unix)]
    fn proc_095_a_symlink_that_leaves_the_root_is_not_followed() {
        let base = std::env::temp_dir().join(format!("bugle-agents-md-{}", std::process::id()));
        let (root, outside) = (base.join("repo"), base.join("outside"));
        fs::create_dir_all(root.join("pkg")).unwrap();
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("AGENTS.md"), "stolen").unwrap();
        fs::write(root.join("AGENTS.md"), "root").unwrap();
        std::os::unix::fs::symlink(outside.join("AGENTS.md"), root.join("pkg/AGENTS.md")).unwrap();
        let found = AgentsMd::new(&root).find(&["pkg/x".to_owned()], &HashSet::new());
        let found: Vec<(PathBuf, String)> = found.into_iter().map(|(path, text)| (path.to_path(), text)).collect();
        assert_eq!(found, [(root.join("AGENTS.md"), "root".to_owned())]);
        fs::remove_dir_all(&base).unwrap();
    }
}
