//! `kubelet.env`: selects the kubelet image that the unit starts.

use super::os_release::assignment;
use super::version::KubeVersion;

/// The file of the installer, from the first boot on: the template of the real one.
pub const INSTALLER_PATH: &str = "/etc/kubernetes/installer/kubelet.env";
/// The file that the kubelet's unit reads. It exists if and only if the node is prepared.
pub const PATH: &str = "/etc/kubernetes/kubelet.env";
/// Two lines, with space for additions by administrators.
pub const MAX_BYTES: u64 = 64 * 1024;

const TAG: &str = "KUBELET_IMAGE_TAG";

/// Returns the cluster version at the time of installation.
pub fn version(text: &str) -> Option<String> {
    text.lines().filter_map(assignment).filter(|(key, _)| *key == TAG).map(|(_, value)| value).next_back()
}

/// Returns the installer's file with the tag of this version. Order, comments and all other keys are kept.
pub fn render(installer: &str, version: &KubeVersion) -> String {
    let tag = format!("{TAG}={}\n", version.image_tag());
    let mut out = String::new();
    let mut placed = false;
    for line in installer.lines() {
        match assignment(line) {
            Some((TAG, _)) if placed => {}
            Some((TAG, _)) => {
                out.push_str(&tag);
                placed = true;
            }
            Some((key, value)) if is_plain(&value) => out.push_str(&format!("{key}={value}\n")),
            _ => out.push_str(&format!("{line}\n")),
        }
    }
    if !placed {
        out.push_str(&tag);
    }
    out
}

/// Checks that the value means the same to systemd and to a shell without quotes.
fn is_plain(value: &str) -> bool {
    value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/:@+,=%".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INSTALLER: &str =
        "KUBELET_IMAGE_URL=\"quay.io/coreos/hyperkube\"\nKUBELET_IMAGE_TAG=\"v1.7.5_coreos.1\"\n";

    #[test]
    fn the_tag_is_replaced_and_quotes_go() {
        assert_eq!(version(INSTALLER).as_deref(), Some("v1.7.5_coreos.1"));
        let rendered = render(INSTALLER, &"v1.9.3+coreos.0".parse().unwrap());
        assert_eq!(
            rendered,
            "KUBELET_IMAGE_URL=quay.io/coreos/hyperkube\nKUBELET_IMAGE_TAG=v1.9.3_coreos.0\n"
        );
    }

    #[test]
    fn order_comments_and_difficult_values_stay() {
        let text = "# ours\nZ=1\nKUBELET_IMAGE_TAG=a\nA=\"two words\"\nKUBELET_IMAGE_TAG=b\n";
        let rendered = render(text, &"v1.9.3".parse().unwrap());
        assert_eq!(rendered, "# ours\nZ=1\nKUBELET_IMAGE_TAG=v1.9.3\nA=\"two words\"\n");
        assert_eq!(version(text).as_deref(), Some("b"));
        assert_eq!(render("", &"v1.9.3".parse().unwrap()), "KUBELET_IMAGE_TAG=v1.9.3\n");
    }
}
