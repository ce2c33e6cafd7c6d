//! What is agreed on, in a file of the keeper's state directory: its next start goes on with it.

use std::io;
use std::path::Path;

use crate::cluster::coordinator::embedded::Agreed;
use crate::cluster::member::ClusterId;
use crate::replace::{read_whole, replace_durably};

/// Longest file that is read: several times what all that may be agreed on takes.
const FILE_BYTES_MAX: usize = 256 << 20;

/// What an earlier start kept; without a file a cluster that begins.
///
/// # Errors
/// When the file cannot be read, or is not ours: a cluster with members is not to be forgotten for that.
pub(super) fn load(file: &Path) -> io::Result<Agreed> {
    match read_whole(file, FILE_BYTES_MAX) {
        Ok(text) => {
            let agreed: Agreed = serde_json::from_slice(&text).map_err(io::Error::other)?;
            if !agreed.can_go_on() {
                return Err(io::Error::other("its number of changes is one that no coordinator writes"));
            }
            Ok(agreed)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Agreed::new(ClusterId(drawn()?))),
        Err(error) => Err(error),
    }
}

/// A random number.
///
/// # Errors
/// When the system gives none.
pub(super) fn drawn() -> io::Result<u64> {
    getrandom::u64().map_err(|error| io::Error::other(error.to_string()))
}

/// Keeps what is agreed on. When this returns it outlives a loss of power.
///
/// # Errors
/// Of the file system; what was kept before is still there then.
pub(super) fn store(file: &Path, agreed: &Agreed) -> io::Result<()> {
    let text = serde_json::to_vec_pretty(agreed).map_err(io::Error::other)?;
    replace_durably(file, &text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;
    use crate::cluster::coordinator::conformance::{sets, soon};
    use crate::cluster::coordinator::embedded::Embedded;
    use crate::cluster::coordinator::{Coordinator, Made, NamespaceRecord};

    #[test]
    fn what_is_kept_is_found_and_what_is_no_state_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("coordinator.json");
        let new = load(&file).unwrap();
        assert_ne!(new.cluster, load(&file).unwrap().cluster, "each cluster has an id of its own");
        store(&file, &new).unwrap();
        assert_eq!(load(&file).unwrap(), new);
        fs::write(&file, "{}").unwrap();
        load(&file).unwrap_err();
        let forged = serde_json::to_string(&new)
            .unwrap()
            .replace("\"changes\":0", &format!("\"changes\":{}", u64::MAX));
        fs::write(&file, forged).unwrap();
        load(&file).unwrap_err();
    }

    #[tokio::test]
    async fn an_earlier_build_reads_what_is_kept_and_its_records_are_told_from_those_made_anew() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("coordinator.json");
        let coordinator = Embedded::new(ClusterId(7));
        coordinator.change_namespace("kv", sets("quota", "1GiB"), soon()).await.unwrap();
        store(&file, &coordinator.agreed().0).unwrap();
        let mut kept: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let records: BTreeMap<String, NamespaceRecord> =
            serde_json::from_value(kept["namespaces"].clone()).unwrap();
        assert_eq!(records, coordinator.namespaces().borrow().records);
        // It keeps them without.
        kept["namespaces"]["kv"].as_object_mut().unwrap().remove("made").unwrap();
        fs::write(&file, kept.to_string()).unwrap();
        let [first, next] = [(); 2].map(|()| Embedded::resumed(load(&file).unwrap()));
        let meant = first.find_namespace("kv", soon()).await.unwrap();
        assert_ne!(meant, Made::NOTHING);
        assert_eq!(next.find_namespace("kv", soon()).await.unwrap(), meant, "nothing was written since");
        next.remove_namespace("kv", meant, soon()).await.unwrap();
        let anew = next.change_namespace("kv", sets("ttl", "1h"), soon()).await.unwrap();
        assert_eq!(next.remove_namespace("kv", meant, soon()).await.unwrap(), anew, "it is another one");
        assert_ne!(next.find_namespace("kv", soon()).await.unwrap(), Made::NOTHING);
    }
}
