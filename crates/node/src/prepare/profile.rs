//! torcx profiles: the addon images that the next boot unpacks.

use serde_json::{Value, json};

use super::version::is_tame;

pub const USER_PROFILES: &str = "/etc/torcx/profiles";
/// Directories of profiles, that of the user first.
pub const PROFILE_DIRS: [&str; 3] =
    [USER_PROFILES, "/usr/share/oem/torcx/profiles", "/usr/share/torcx/profiles"];
/// File with the name of the profile for the next boot.
pub const SELECTOR: &str = "/etc/torcx/next-profile";
/// The profile that this boot loaded.
pub const RUNNING: &str = "/run/torcx/profile.json";
/// File that torcx writes last, after everything was unpacked.
pub const SEAL: &str = "/run/metadata/torcx";
pub const MAX_BYTES: u64 = 256 * 1024;

/// The vendor's profile must not be changed, so selecting it counts as selecting none.
const VENDOR: &str = "vendor";
const KINDS: [&str; 2] = ["profile-manifest-v0", "profile-manifest-v1"];

#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("the torcx profile is not a profile: {reason}")]
    Syntax { reason: String },
    #[error("`{name}` is not the name of a torcx profile")]
    Name { name: String },
}

/// Returns the profile selected for the next boot, if there is one; the file has one line, with or without `.json`.
pub fn selected(selector: &str) -> Result<Option<String>, ProfileError> {
    let name = selector.trim();
    let name = name.strip_suffix(".json").unwrap_or(name);
    match name {
        "" | VENDOR => Ok(None),
        name if is_tame(name) => Ok(Some(name.to_owned())),
        name => Err(ProfileError::Name { name: name.chars().take(64).collect() }),
    }
}

/// Returns the reference of an image in a profile.
pub fn reference(profile: &str, image: &str) -> Result<Option<String>, ProfileError> {
    let document = parse(profile)?;
    let images = document["value"]["images"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = images.iter().rev().find(|entry| entry["name"] == image);
    let reference = found.and_then(|entry| entry["reference"].as_str());
    Ok(reference.filter(|reference| !reference.is_empty()).map(str::to_owned))
}

/// Returns the profile with this image: in its position if it has one, else at the end. Everything else is kept.
pub fn with_image(profile: Option<&str>, image: &str, reference: &str) -> Result<String, ProfileError> {
    let mut document = match profile {
        Some(text) => parse(text)?,
        None => json!({"kind": KINDS[0], "value": {"images": []}}),
    };
    let Some(images) = document["value"]["images"].as_array_mut() else {
        return Err(ProfileError::Syntax { reason: "it has no list of images".to_owned() });
    };
    match images.iter_mut().find(|entry| entry["name"] == image) {
        Some(entry) => entry["reference"] = Value::from(reference),
        None => images.push(json!({"name": image, "reference": reference})),
    }
    Ok(format!("{document}\n"))
}

fn parse(text: &str) -> Result<Value, ProfileError> {
    let document: Value =
        serde_json::from_str(text).map_err(|error| ProfileError::Syntax { reason: error.to_string() })?;
    if !KINDS.iter().any(|kind| document["kind"] == *kind) {
        return Err(ProfileError::Syntax { reason: format!("its kind is {}", document["kind"]) });
    }
    if !document["value"]["images"].is_array() {
        return Err(ProfileError::Syntax { reason: "it has no list of images".to_owned() });
    }
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_takes_its_place() {
        let made = with_image(None, "docker", "17.03").unwrap();
        assert_eq!(
            made,
            "{\"kind\":\"profile-manifest-v0\",\"value\":{\"images\":[{\"name\":\"docker\",\"reference\":\"17.03\"}]}}\n"
        );
        assert_eq!(reference(&made, "docker").unwrap().as_deref(), Some("17.03"));

        let users = r#"{"kind":"profile-manifest-v1","value":{"images":[{"name":"docker","reference":"1.12","remote":"r"},{"name":"rkt","reference":"1"}]}}"#;
        let changed = with_image(Some(users), "docker", "17.03").unwrap();
        assert!(changed.contains(r#""remote":"r""#) && changed.contains("rkt"), "{changed}");
        assert_eq!(reference(&changed, "docker").unwrap().as_deref(), Some("17.03"));
        assert_eq!(with_image(Some(&changed), "docker", "17.03").unwrap(), changed);
    }

    #[test]
    fn the_vendors_profile_is_no_choice() {
        assert_eq!(selected("vendor\n").unwrap(), None);
        assert_eq!(selected("").unwrap(), None);
        assert_eq!(selected("mine.json\n").unwrap().as_deref(), Some("mine"));
        assert!(selected("../../etc/passwd").is_err());
    }

    #[test]
    fn what_is_no_profile_is_refused() {
        for text in [
            "",
            "{}",
            r#"{"kind":"profile-manifest-v0","value":{}}"#,
            r#"{"kind":"x","value":{"images":[]}}"#,
        ] {
            assert!(with_image(Some(text), "docker", "1").is_err(), "{text}");
        }
        let removed =
            r#"{"kind":"profile-manifest-v0","value":{"images":[{"name":"docker","reference":""}]}}"#;
        assert_eq!(reference(removed, "docker").unwrap(), None);
    }
}
