//! `/livez`, `/readyz` and `/healthz`, by the conventions of kube-apiserver. They need no authentication and precede
//! all other paths.

use hyper::{Method, Request, StatusCode};

use crate::Gateway;
use crate::answer::{Answer, text};

/// A parsed health request: one of the three endpoints and its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    what: What,
    /// One check only.
    check: Option<String>,
    verbose: bool,
    excluded: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Livez,
    Readyz,
    Healthz,
}

struct Check {
    name: &'static str,
    good: bool,
    /// Whether a failure of this check makes the endpoint fail, so that a load balancer removes the gateway.
    counts: bool,
}

// === impl Question ===

impl Question {
    pub(crate) fn of<B>(request: &Request<B>) -> Option<Self> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return None;
        }
        Self::parse(request.uri().path(), request.uri().query().unwrap_or_default())
    }

    fn parse(path: &str, query: &str) -> Option<Self> {
        let mut parts = path.strip_prefix('/')?.splitn(2, '/');
        let what = match parts.next()? {
            "livez" => What::Livez,
            "readyz" => What::Readyz,
            "healthz" => What::Healthz,
            _ => return None,
        };
        let check = parts.next().filter(|check| !check.is_empty()).map(str::to_owned);
        let mut question = Self { what, check, verbose: false, excluded: Vec::new() };
        for part in query.split('&') {
            match part.split_once('=').unwrap_or((part, "")) {
                ("verbose", _) => question.verbose = true,
                ("exclude", name) => question.excluded.push(name.to_owned()),
                _ => {}
            }
        }
        Some(question)
    }

    pub(crate) fn answer(&self, gateway: &Gateway) -> Answer {
        let situation = gateway.outlook.now();
        let check = |name, good| Check { name, good, counts: true };
        let mut checks = vec![check("ping", true)];
        if self.what != What::Livez {
            gateway.probed();
            checks.push(check("tls-certs", gateway.credentials.get().serves_a_valid_certificate()));
            checks.push(check("upstream", situation.is_ready(gateway.config.readiness)));
            // The API server is reachable through the gateway even when it cannot gather logs.
            checks.push(Check {
                name: "gather",
                good: gateway.gathers.collector().is_there(),
                counts: false,
            });
            checks.push(check("shutdown", !gateway.is_leaving()));
        }
        self.judge(checks)
    }

    fn judge(&self, mut checks: Vec<Check>) -> Answer {
        if let Some(only) = &self.check {
            checks.retain(|check| check.name == only);
            if checks.is_empty() {
                return text(StatusCode::NOT_FOUND, "404 page not found\n");
            }
        }
        let name = match self.what {
            What::Livez => "livez",
            What::Readyz => "readyz",
            What::Healthz => "healthz",
        };
        let mut page = String::new();
        let mut good = true;
        for check in &checks {
            let excluded = self.excluded.iter().any(|excluded| excluded == check.name);
            // An explicitly requested check always counts.
            let counts = check.counts || self.check.is_some();
            good &= check.good || excluded || !counts;
            page += &match (excluded, check.good) {
                (true, _) => format!("[+]{} excluded: ok\n", check.name),
                (false, true) => format!("[+]{} ok\n", check.name),
                (false, false) if !counts => {
                    format!("[-]{} failed: reason withheld, does not count\n", check.name)
                }
                (false, false) => format!("[-]{} failed: reason withheld\n", check.name),
            };
        }
        match (good, self.verbose) {
            (true, false) => text(StatusCode::OK, "ok"),
            (true, true) => text(StatusCode::OK, format!("{page}{name} check passed\n")),
            (false, _) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{page}{name} check failed\n")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_exact() {
        for (path, known) in [
            ("/readyz", true),
            ("/readyz/", true),
            ("/readyz/ping", true),
            ("/livez", true),
            ("/healthz", true),
            ("/readyzz", false),
            ("/", false),
            ("/api/readyz", false),
            ("readyz", false),
        ] {
            assert_eq!(Question::parse(path, "").is_some(), known, "{path}");
        }
        let question = Question::parse("/readyz", "verbose&exclude=upstream").unwrap();
        assert!(question.verbose && question.excluded == ["upstream"]);
    }

    #[test]
    fn answers_have_the_codes_machines_read() {
        let check = |name, good, counts| Check { name, good, counts };
        let checks =
            || vec![check("ping", true, true), check("upstream", false, true), check("gather", false, false)];
        for (path, query, code) in [
            ("/readyz", "", 500),
            ("/readyz", "exclude=upstream", 200),
            ("/readyz/ping", "", 200),
            ("/readyz/upstream", "", 500),
            ("/readyz/gather", "", 500),
            ("/readyz/unknown", "", 404),
        ] {
            let answer = Question::parse(path, query).unwrap().judge(checks());
            assert_eq!(answer.status().as_u16(), code, "{path}?{query}");
        }
    }
}
