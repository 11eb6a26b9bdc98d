//! Finding out whether a file lies on a network file system, where SQLite's WAL mode is not safe (STO-041).

use std::path::Path;

/// File systems of which several machines may see the same file.
const NETWORK: [&str; 13] = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "afs",
    "ceph",
    "lustre",
    "glusterfs",
    "gfs2",
    "ocfs2",
    "fuse.sshfs",
    "fuse.glusterfs",
];

/// The name of the network file system that holds `path`, as far as this can be told (on Linux).
pub(super) fn network_file_system(path: &Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    file_system_of(&mounts, path).filter(|kind| NETWORK.contains(kind)).map(str::to_owned)
}

/// The type of the innermost mount that holds `path`. Lines: `id parent dev root MOUNTPOINT options … - TYPE source …`.
fn file_system_of<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    mounts
        .lines()
        .filter_map(|line| {
            let (mount, rest) = line.split_once(" - ")?;
            let point = mount.split(' ').nth(4)?.replace("\\040", " ");
            path.starts_with(&point).then(|| (point.len(), rest.split(' ').next().unwrap_or_default()))
        })
        // Of mounts on the same point, the last one counts.
        .max_by_key(|(depth, _)| *depth)
        .map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sto_041_the_innermost_mount_tells_the_file_system() {
        let mounts = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      30 21 0:5 / /mnt/team\\040share rw shared:1 - nfs4 host:/x rw\n\
                      31 30 8:2 / /mnt/team\\040share/local rw - xfs /dev/sdb rw\n";
        let of = |path: &str| file_system_of(mounts, Path::new(path));
        assert_eq!(of("/home/a.db"), Some("ext4"));
        assert_eq!(of("/mnt/team share/a.db"), Some("nfs4"));
        assert_eq!(of("/mnt/team share/local/a.db"), Some("xfs"));
        assert_eq!(of("/mnt/team sharee/a.db"), Some("ext4"));
    }
}
