//! Evaluates unreachable registries for a package-based machine.
//!
//! The images that its payload will pull are unknown, but the registries with mirrors were configured because they
//! are needed.

use std::collections::BTreeMap;

use super::Outcome;

/// The status of each registry, or the reason why it did not answer.
type Answers = BTreeMap<String, Result<u16, String>>;

/// Returns one line for each queried registry, and one for each unavailable one.
///
/// `mirrored` lists the locations of everything that has mirrors: one of each list must answer. Other unreachable
/// registries are a warning, unless none answers at all.
pub(super) fn judge(mirrored: &[Vec<String>], answers: &Answers) -> Vec<(Outcome, String)> {
    if answers.is_empty() {
        return vec![(Outcome::Warned, "this machine configures no registry yet".to_owned())];
    }
    let has_answered = |host: &String| answers.get(host).is_some_and(Result::is_ok);
    let mut lines: Vec<(Outcome, String)> = Vec::new();
    // Registries that were not queried are not judged.
    let asked = mirrored.iter().filter(|places| places.iter().all(|host| answers.contains_key(host)));
    for places in asked.filter(|places| !places.iter().any(has_answered)) {
        let says = format!("none of {} answers, and what is mirrored there is needed", places.join(", "));
        lines.push((Outcome::FailedForNow, says));
    }
    if !answers.keys().any(has_answered) && lines.is_empty() {
        lines.push((Outcome::FailedForNow, "no registry of the pull secret answers".to_owned()));
    }
    lines.extend(answers.iter().map(|(host, answer)| match answer {
        Ok(status) => (Outcome::Passed, format!("{host} answers ({status})")),
        Err(error) => (Outcome::Warned, format!("{host}: {error}")),
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(hosts: &[(&str, bool)]) -> Answers {
        let answer = |answers: bool| if answers { Ok(401) } else { Err("silent".to_owned()) };
        hosts.iter().map(|(host, answers)| ((*host).to_owned(), answer(*answers))).collect()
    }

    fn failures(mirrored: &[&[&str]], hosts: &[(&str, bool)]) -> usize {
        let mirrored: Vec<Vec<String>> =
            mirrored.iter().map(|places| places.iter().map(|place| (*place).to_owned()).collect()).collect();
        let lines = judge(&mirrored, &answers(hosts));
        lines.iter().filter(|(outcome, _)| *outcome == Outcome::FailedForNow).count()
    }

    #[test]
    fn silence_matters_where_something_needed_comes_from() {
        assert_eq!(failures(&[], &[("quay.io", true), ("cloud.openshift.com", false)]), 0);
        assert_eq!(failures(&[], &[("quay.io", false), ("cloud.openshift.com", false)]), 1, "nobody");
        assert_eq!(failures(&[], &[]), 0, "none is named");
        let mirror: &[&[&str]] = &[&["m.corp", "quay.io"]];
        assert_eq!(failures(mirror, &[("m.corp", true), ("quay.io", false), ("other", false)]), 0);
        assert_eq!(failures(mirror, &[("m.corp", false), ("quay.io", false), ("other", true)]), 1);
        assert_eq!(failures(&[&["m.corp"]], &[("m.corp", false), ("quay.io", true)]), 1, "it is blocked");
    }
}
