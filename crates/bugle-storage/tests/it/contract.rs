//! The contract suite on every store of this crate.

use std::sync::Arc;

use bugle::storage::{SharedStorage, contract};
use bugle_storage::libsql::LibSql;

#[tokio::test]
async fn a_file_fulfils_the_contract() {
    let directory = tempfile::tempdir().unwrap();
    let number = std::sync::atomic::AtomicUsize::new(0);
    contract::run_all(|| async {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = directory.path().join(format!("{number}.db"));
        Arc::new(LibSql::open(path.to_str().unwrap()).unwrap()) as SharedStorage
    })
    .await;
}

#[tokio::test]
async fn a_database_in_memory_fulfils_the_contract() {
    contract::run_all(|| async { Arc::new(LibSql::open(":memory:").unwrap()) as SharedStorage }).await;
}
