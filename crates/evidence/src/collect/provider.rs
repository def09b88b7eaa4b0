//! The cloud instance of this machine: the `spec.providerID` of its Node, as far as local files show it.
//!
//! Cluster API uses it to match Machines before their Nodes exist.

use serde::Deserialize;

use super::host::Host;

/// Maximum size of configurations and of instance metadata; both are small.
const MAX_FILE: u64 = 1 << 20;
/// Azure IDs are the longest: a path with names of up to 90 characters.
const MAX_ID: usize = 512;

/// Files with the kubelet's flags and configuration. A configured ID takes precedence.
const KUBELET: [&str; 9] = [
    "/var/lib/kubelet/kubeadm-flags.env",
    "/var/lib/kubelet/instance-config.yaml",
    "/var/lib/kubelet/config.yaml",
    "/etc/kubernetes/kubelet/config.json",
    "/etc/kubernetes/kubelet/config.json.d/40-nodeadm.conf",
    "/etc/default/kubelet",
    "/etc/sysconfig/kubelet",
    "/etc/rancher/k3s/config.yaml",
    "/etc/rancher/rke2/config.yaml",
];

/// Names of the flag and of the field.
const NAMES: [&str; 2] = ["provider-id", "providerID"];

/// cloud-init's instance metadata.
const INSTANCE: &str = "/run/cloud-init/instance-data.json";

#[derive(Deserialize)]
struct InstanceData {
    v1: V1,
}

#[derive(Deserialize)]
struct V1 {
    cloud_name: String,
    instance_id: String,
    availability_zone: Option<String>,
}

pub(super) fn id(host: &Host) -> Option<String> {
    let text = |path: &str| host.read(path, MAX_FILE).ok();
    let told = KUBELET.iter().filter_map(|path| text(path)).find_map(|text| told(&text));
    told.or_else(|| serde_json::from_slice::<InstanceData>(&text(INSTANCE)?).ok()?.v1.id())
}

/// Finds the value of the flag or field: `--provider-id=X`, `provider-id=X`, `providerID: X`,
/// `"providerID": "X"`.
fn told(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let mut values = lines.flat_map(|line| {
        NAMES.iter().filter_map(move |name| {
            let (_, rest) = line.split_once(name)?;
            let value = rest.trim_start_matches(['=', ':', ' ', '"', '\'']);
            value.split([' ', '\t', '"', '\'', ',', '\\']).next()
        })
    });
    values.find(|value| is_id(value)).map(str::to_owned)
}

/// Returns whether the text has the form of a provider ID. An unfilled template or a secret does not.
fn is_id(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || ":/._-".contains(c);
    let place = text.split_once("://").filter(|(cloud, place)| !cloud.is_empty() && !place.is_empty());
    place.is_some() && text.len() <= MAX_ID && text.chars().all(fits)
}

// === impl V1 ===

impl V1 {
    /// Derives the ID only for clouds whose controllers and Cluster API provider use the same form, with all
    /// parts available here. On other clouds the kubelet's configuration or the Node contains the ID.
    fn id(self) -> Option<String> {
        let Self { cloud_name, instance_id, availability_zone } = self;
        let is_number = || instance_id.bytes().all(|byte| byte.is_ascii_digit());
        let id = match cloud_name.as_str() {
            "aws" if instance_id.starts_with("i-") => format!("aws:///{}/{instance_id}", availability_zone?),
            "openstack" => format!("openstack:///{instance_id}"),
            "hetzner" if is_number() => format!("hcloud://{instance_id}"),
            "digitalocean" if is_number() => format!("digitalocean://{instance_id}"),
            _ => return None,
        };
        is_id(&id).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn id_of(files: &[(&str, &str)]) -> Option<String> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        id(&Host::at(root.path()).unwrap())
    }

    #[test]
    fn kubelet_is_told_by_a_flag_or_in_its_configuration() {
        let flags = "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.1 --provider-id=aws:///eu-1a/i-0abc --v=2\"\n";
        for (path, text, id) in [
            (KUBELET[0], flags, "aws:///eu-1a/i-0abc"),
            (
                "/etc/default/kubelet",
                "KUBELET_EXTRA_ARGS=--provider-id vsphere://4212-aa\n",
                "vsphere://4212-aa",
            ),
            (KUBELET[2], "kind: KubeletConfiguration\nproviderID: \"gce://p/z/n\"\n", "gce://p/z/n"),
            (KUBELET[3], r#"{"maxPods":29,"providerID":"aws:///eu-1a/i-1","x":1}"#, "aws:///eu-1a/i-1"),
            ("/etc/rancher/k3s/config.yaml", "kubelet-arg:\n  - provider-id=hcloud://7\n", "hcloud://7"),
        ] {
            assert_eq!(id_of(&[(path, text)]).as_deref(), Some(id), "{path}");
        }
    }

    #[test]
    fn what_is_no_id_is_none() {
        for text in [
            "# --provider-id=aws:///a/i-1\n",
            "providerID: \"\"\n",
            "--provider-id='{{ ds.meta_data.provider_id }}'\n",
            "--provider-id=aws:///a/$(id)\n",
            "providerID: hunter2\n",
        ] {
            assert_eq!(id_of(&[(KUBELET[0], text)]), None, "{text}");
        }
        assert_eq!(id_of(&[(KUBELET[0], &format!("--provider-id=x://{}\n", "a".repeat(MAX_ID)))]), None);
        assert_eq!(id_of(&[]), None);
    }

    #[test]
    fn a_cloud_tells_its_instance_and_kubelet_is_believed_before_it() {
        let data = |cloud: &str, id: &str| {
            format!(
                r#"{{"ds":{{}},"v1":{{"cloud_name":"{cloud}","instance_id":"{id}","availability_zone":"eu-1a","region":null}}}}"#
            )
        };
        for (cloud, instance, id) in [
            ("aws", "i-0abc", Some("aws:///eu-1a/i-0abc")),
            ("openstack", "5e9a-1", Some("openstack:///5e9a-1")),
            ("hetzner", "4711", Some("hcloud://4711")),
            ("digitalocean", "12", Some("digitalocean://12")),
            ("aws", "nocloud", None),
            ("aws", "i-0\\n0", None),
            ("nocloud", "i-0abc", None),
            // The project, or the case of the resource group, is unknown.
            ("gce", "123", None),
            ("azure", "abc", None),
        ] {
            assert_eq!(id_of(&[(INSTANCE, &data(cloud, instance))]).as_deref(), id, "{cloud}");
        }
        let aws = data("aws", "i-1");
        let both = [(INSTANCE, aws.as_str()), (KUBELET[0], "--provider-id=aws:///x/i-2\n")];
        assert_eq!(id_of(&both).as_deref(), Some("aws:///x/i-2"));
        for odd in ["", "{}", "[]", r#"{"v1":{"cloud_name":1}}"#, "\u{0}"] {
            assert_eq!(id_of(&[(INSTANCE, odd)]), None, "{odd:?}");
        }
    }
}
