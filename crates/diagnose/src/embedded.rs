//! The rule files in the binary.

/// All files of `rules/` by name. A test compares this list with the directory.
pub(crate) const FILES: &[(&str, &str)] = &[
    ("causes.toml", include_str!("../../../rules/causes.toml")),
    ("cloud-init.toml", include_str!("../../../rules/cloud-init.toml")),
    ("cloud.toml", include_str!("../../../rules/cloud.toml")),
    ("etcd.toml", include_str!("../../../rules/etcd.toml")),
    ("facts.toml", include_str!("../../../rules/facts.toml")),
    ("ignition.toml", include_str!("../../../rules/ignition.toml")),
    ("images.toml", include_str!("../../../rules/images.toml")),
    ("in-place.toml", include_str!("../../../rules/in-place.toml")),
    ("k3s.toml", include_str!("../../../rules/k3s.toml")),
    ("kernel.toml", include_str!("../../../rules/kernel.toml")),
    ("kubeadm.toml", include_str!("../../../rules/kubeadm.toml")),
    ("kubelet.toml", include_str!("../../../rules/kubelet.toml")),
    ("milestones.toml", include_str!("../../../rules/milestones.toml")),
    ("network.toml", include_str!("../../../rules/network.toml")),
    ("openshift.toml", include_str!("../../../rules/openshift.toml")),
    ("runtime.toml", include_str!("../../../rules/runtime.toml")),
    ("sources.toml", include_str!("../../../rules/sources.toml")),
    ("systemd.toml", include_str!("../../../rules/systemd.toml")),
    ("watched.toml", include_str!("../../../rules/watched.toml")),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_file_of_the_folder_is_embedded() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../rules");
        let on_disk: BTreeSet<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| std::path::Path::new(name).extension().is_some_and(|end| end == "toml"))
            .collect();
        let embedded: BTreeSet<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(on_disk, embedded);
    }
}
