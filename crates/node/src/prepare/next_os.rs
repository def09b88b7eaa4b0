//! The operating system version of the next boot, for the case that update_engine does not know it any more.

use super::version::OsVersion;

/// The answer of the update server, as stored by update_engine.
pub const FULL_RESPONSE: &str = "/var/lib/update_engine/prefs/full-response";
pub const MAX_BYTES: u64 = 1024 * 1024;

/// Returns `manifest/@version` of the update server's answer.
pub fn version_in_response(xml: &str) -> Option<OsVersion> {
    let manifest = xml.split_once("<manifest")?.1;
    let (attributes, _) = manifest.split_once('>')?;
    if !attributes.starts_with(char::is_whitespace) {
        return None;
    }
    let mut rest = attributes;
    loop {
        let (name, behind) = rest.split_once('=')?;
        let behind = behind.trim_start();
        let quote = behind.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let (value, after) = behind[1..].split_once(quote)?;
        if name.trim() == "version" {
            return value.parse().ok().filter(|version: &OsVersion| !version.is_unknown());
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_of_an_update_server_tells_the_version() {
        let xml = r#"<response protocol="3.0"><app appid="e96281a6"><updatecheck status="ok"><urls><url codebase="https://u/"/></urls><manifest os="a" version="4152.2.1"><packages/></manifest></updatecheck></app></response>"#;
        assert_eq!(version_in_response(xml).unwrap().as_str(), "4152.2.1");
        assert_eq!(version_in_response("<manifest version='1.2.3'/>").unwrap().as_str(), "1.2.3");
        for xml in [
            "",
            "<manifest",
            "<manifest version=1.2.3>",
            "<manifest version=\"0.0.0\">",
            "<manifests version=\"1.2.3\">",
            "<manifest version=\"../x\">",
            "<manifest other=\"1\">",
        ] {
            assert_eq!(version_in_response(xml), None, "{xml}");
        }
    }
}
