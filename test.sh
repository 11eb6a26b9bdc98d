#!/usr/bin/env bash
# Passes the tests: format, lints, docs, dependencies, unit and process tests, and the real JavaScript client against a
# server. Installs the two cargo tools it needs. Services are started on free ports and stopped again.
#
#   ./test.sh          everything
#   ./test.sh quick    without lints, docs, dependency checks and the JavaScript client
set -euo pipefail
cd "$(dirname "$0")"
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
[ -z "${CI:-}" ] || export CARGO_INCREMENTAL=0

step() { printf '\n== %s\n' "$*"; }
need() { # need COMMAND CRATE
  command -v "$1" >/dev/null 2>&1 || { step "installing $2"; cargo install --locked "$2"; }
}

need cargo-nextest cargo-nextest
if [ "${1:-}" != quick ]; then
  command -v node >/dev/null 2>&1 || { echo "test.sh: Node.js 20 or newer is needed for the conformance suite" >&2; exit 2; }
  step "format"
  cargo fmt --all --check
  step "lints"
  cargo clippy --workspace --all-targets -- -D warnings
  step "documentation"
  RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --lib --quiet
  step "dependencies: licences, bans, sources"
  need cargo-deny cargo-deny
  cargo fetch --locked # of every platform, which the check below looks at
  cargo deny --offline check licenses bans sources
fi

step "tests"
BUGLE_FUZZ_SECONDS=${BUGLE_FUZZ_SECONDS:-60} cargo nextest run --workspace --no-fail-fast
step "examples in the documentation"
cargo test --workspace --doc --quiet

if [ "${1:-}" != quick ]; then
  step "conformance with the real client"
  cargo build -p bugle-server --example conformance_target
  target=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
  (
    cd conformance
    npm ci --no-audit --no-fund --loglevel=error
    node run.mjs --start "$target/debug/examples/conformance_target" \
      --only http,agents,streams,signals,approvals,subagents,tools,memory,auth --slow --beyond
  )
fi
step "all passed"
