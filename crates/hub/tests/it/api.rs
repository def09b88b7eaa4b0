use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use landfall_model::Phase;
use landfall_testkit::eventually;

use crate::bed::{TestHub, bundle, envelope, failed, no_dns, running, succeeded};

#[test]
fn a_failed_fleet_is_one_line_per_cause() {
    let hub = TestHub::start();
    for number in 0..40 {
        hub.stored(&envelope(&format!("n{number:02}"), 1, no_dns()));
    }
    for number in 0..3 {
        let report = failed("disk-full", &format!("`/var` is full ({number})"), "no space left on device");
        hub.stored(&envelope(&format!("d{number}"), 1, report));
    }
    hub.stored(&envelope("good", 1, succeeded()));

    let fleet = hub.json("/api/v1/fleet?limit=5");
    assert_eq!((fleet["total"].as_u64(), fleet["found"].as_u64()), (Some(44), Some(44)));
    assert_eq!(fleet["nodes"].as_array().unwrap().len(), 5);
    let groups = fleet["groups"].as_array().unwrap();
    let lines: Vec<(u64, &str, &str)> = groups
        .iter()
        .map(|group| {
            let text = |name: &str| group[name].as_str().unwrap();
            (group["nodes"].as_u64().unwrap(), text("cause"), text("title"))
        })
        .collect();
    // If the titles differ, the group has the catalog's title.
    assert_eq!(
        lines,
        [
            (40, "dns-resolution-failure", "The name `api.corp` cannot be resolved"),
            (3, "disk-full", "A filesystem that bootstrap needs is full"),
        ]
    );
    assert_eq!(hub.json("/api/v1/groups")["groups"], fleet["groups"]);

    let page = hub.get("/").text();
    assert!(page.contains("<h1 id=\"headline\">43 of 44 nodes are in trouble: 2 causes</h1>"), "{page}");
    for (query, found) in
        [("state=failed", 43), ("cause=disk-full", 3), ("q=GOOD", 1), ("phase=ready", 1), ("cause=none", 1)]
    {
        assert_eq!(hub.json(&format!("/api/v1/fleet?{query}"))["found"], found, "{query}");
    }
    for wrong in ["state=odd", "cause=A/b", "phase=odd", "limit=many"] {
        assert_eq!(hub.get(&format!("/api/v1/fleet?{wrong}")).status, 400, "{wrong}");
    }
}

#[test]
fn every_node_is_told_of_page_by_page() {
    let hub = TestHub::start();
    for name in ["c", "a", "b"] {
        hub.stored(&envelope(name, 1, running()));
    }
    let first = hub.json("/api/v1/nodes?limit=2");
    assert_eq!((&first["nodes"][0]["name"], &first["next"]), (&"a".into(), &"b".into()));
    // A change that reorders the fleet view does not change the order by name.
    hub.stored(&envelope("c", 2, no_dns()));
    let second = hub.json("/api/v1/nodes?limit=2&after=b");
    assert_eq!((&second["nodes"][0]["name"], &second["nodes"][0]["state"]), (&"c".into(), &"failed".into()));
    assert!(second["next"].is_null() && second["nodes"].as_array().unwrap().len() == 1, "{second}");
    assert_eq!(hub.get("/api/v1/nodes?limit=many").status, 400);
}

#[test]
fn a_node_tells_its_story() {
    let hub = TestHub::start();
    hub.stored(&envelope("n1", 1, running()));
    hub.stored(&envelope("n1", 2, running()));
    hub.stored(&envelope("n1", 3, no_dns()));

    let node = hub.json("/api/v1/nodes/n1");
    assert_eq!(node["state"], "failed");
    assert_eq!((node["reports"].as_u64(), node["sequence"].as_u64()), (Some(3), Some(3)));
    assert_eq!(node["report"]["findings"][0]["evidence"][0]["line"], 42);
    let turns = hub.json("/api/v1/nodes/n1/history");
    let turns = turns["turns"].as_array().unwrap();
    assert_eq!(
        turns.iter().map(|turn| turn["state"].as_str().unwrap()).collect::<Vec<_>>(),
        ["failed", "running"]
    );
    let past = hub.json(&format!("/api/v1/nodes/n1/history/{}", turns[1]["turn"]));
    assert_eq!(past["verdict"]["phase"], Phase::Join.name());
    let before = hub.json(&format!("/api/v1/nodes/n1/history?before={}", turns[0]["turn"]));
    assert_eq!(before["turns"].as_array().unwrap().len(), 1);

    let page = hub.get("/nodes/n1").text();
    for part in [
        "lookup api.corp on 10.0.0.2:53: no such host",
        "Correct",
        "dns-resolution-failure",
        "aria-labelledby=\"timeline\"",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(hub.get(&format!("/nodes/n1?turn={}", turns[1]["turn"])).text().contains("an earlier report"));
    assert_eq!(hub.get("/nodes/n2").status, 404);
    assert_eq!(hub.get("/api/v1/nodes/n2").status, 404);
    let forgotten = hub.request("DELETE", "/api/v1/nodes/n1", &[], b"");
    assert_eq!((forgotten.status, hub.get("/nodes/n1").status), (204, 404));
}

#[test]
fn evidence_is_found_by_its_words() {
    let hub = TestHub::start();
    hub.stored(&envelope("n1", 1, no_dns()));
    hub.stored(&envelope("n2", 1, failed("disk-full", "Full", "write /var/lib/x: no space left on device")));
    let found = |query: &str| -> Vec<String> {
        let answer = hub.json(&format!("/api/v1/search?q={query}"));
        answer["found"]
            .as_array()
            .unwrap()
            .iter()
            .map(|hit| hit["node"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(found("no%20such%20HOST"), ["n1"]);
    assert_eq!(found("left%20device"), ["n2"]);
    assert_eq!(found("no"), ["n2", "n1"]);
    assert_eq!(found("api.corp"), ["n1"]);
    // Query syntax is searched literally.
    for odd in ["", "%22", "%22%20OR%20%22", "text%3Ax", "NEAR(a%20b)", "*", "a%00b"] {
        assert!(found(odd).is_empty(), "{odd}");
    }
    assert!(hub.get("/search?q=such").text().contains("lookup api.corp"));
    // A line that is evidence of two findings is returned once.
    let mut report = no_dns();
    report.findings.push(report.findings[0].clone());
    hub.stored(&envelope("n-twice", 1, report));
    let found = hub.json("/api/v1/search?q=lookup");
    let twice = found["found"].as_array().unwrap().iter().find(|found| found["node"] == "n-twice").unwrap();
    assert_eq!(twice["lines"].as_array().unwrap().len(), 1, "{found}");
}

#[test]
fn a_batch_is_judged_line_by_line() {
    let hub = TestHub::start();
    let good = envelope("n1", 1, running());
    let mut lines = serde_json::to_string(&good).unwrap() + "\n";
    lines += "{\"nonsense\": true}\n\n";
    lines += &(serde_json::to_string(&good).unwrap() + "\n");
    lines += &serde_json::to_string(&envelope("n2", 1, no_dns())).unwrap();
    let ndjson = ("content-type", "application/x-ndjson");
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(lines.as_bytes()).unwrap();
    let packed = [
        (vec![ndjson], lines.clone().into_bytes()),
        (vec![ndjson, ("content-encoding", "gzip")], encoder.finish().unwrap()),
        (vec![ndjson, ("content-encoding", "zstd")], zstd::bulk::compress(lines.as_bytes(), 3).unwrap()),
    ];
    for (number, (headers, body)) in packed.iter().enumerate() {
        let answer = hub.request("POST", "/api/v1/reports", headers, body);
        assert_eq!(answer.status, 200, "{answer:?}");
        let results = answer.json()["results"].clone();
        let first = if number == 0 { "stored" } else { "duplicate" };
        assert_eq!(results[0]["outcome"], first, "{results}");
        assert_eq!(results[1]["problem"]["status"], 422, "{results}");
        assert_eq!(results[2]["outcome"], "duplicate", "{results}");
        assert_eq!(results[3]["outcome"], first, "{results}");
    }
    assert_eq!(hub.json("/api/v1/fleet")["total"], 2);
}

#[test]
fn a_bundle_is_kept_read_and_given_back() {
    let hub = TestHub::start();
    hub.stored(&envelope("n1", 1, no_dns()));
    let mut lines: Vec<String> = (1..=1000).map(|number| format!("line {number} of the kubelet")).collect();
    lines[41] = "dial tcp: lookup api.corp on 10.0.0.2:53: no such host".to_owned();
    let bytes = bundle("n1", &lines);
    let record = hub.request("POST", "/api/v1/nodes/n1/bundles", &[], &bytes);
    assert_eq!(record.status, 200, "{record:?}");
    let digest = record.json()["digest"].as_str().unwrap().to_owned();
    // The same bundle again, by digest: it is not stored twice.
    let again = hub.request("PUT", &format!("/api/v1/nodes/n1/bundles/{digest}"), &[], &bytes);
    assert_eq!(again.status, 200, "{again:?}");
    assert_eq!(hub.json("/api/v1/nodes/n1")["bundles"].as_array().unwrap().len(), 1);

    assert_eq!(hub.get(&format!("/api/v1/bundles/{digest}/content")).body, bytes);
    let files = hub.json(&format!("/api/v1/bundles/{digest}/files"));
    assert_eq!(files["files"][1]["path"], "bootstrap/journals/kubelet.log");
    let page = hub
        .json(&format!("/api/v1/bundles/{digest}/lines?path=bootstrap/journals/kubelet.log&from=42&count=2"));
    assert_eq!(page["lines"][0]["line"], 42);
    assert_eq!(
        (page["lines"][1]["text"].as_str(), page["more"].as_bool()),
        (Some("line 43 of the kubelet"), Some(true))
    );
    let hits = hub.json(&format!("/api/v1/bundles/{digest}/lines?q=SUCH%20host"));
    assert_eq!(hits["lines"].as_array().unwrap().len(), 1);

    // The node's page links to the line that proves the verdict.
    let page = hub.get("/nodes/n1").text();
    let (_, link) = page.split_once(&format!("/logs/{digest}/find?")).unwrap();
    let link = link.split('"').next().unwrap().replace("&#38;", "&");
    let leads = |query: &str| -> String {
        let answer = hub.get(&format!("/logs/{digest}/find?{query}"));
        assert_eq!(answer.status, 303, "{answer:?}");
        let place =
            answer.head.lines().find_map(|line| line.strip_prefix("location: ")).unwrap().trim().to_owned();
        place.strip_prefix(&format!("/logs/{digest}?")).unwrap().to_owned()
    };
    assert_eq!(leads(&link), "path=bootstrap/journals/kubelet.log&from=12&mark=42#l42");
    // Among equal lines the nearest one is found. The source `journal` matches the files of units. A missing line
    // leads to a search.
    let kubelet = "path=bootstrap/journals/kubelet.log";
    assert_eq!(
        leads("source=journal:kubelet&line=7&text=line+500+of"),
        format!("{kubelet}&from=470&mark=500#l500")
    );
    assert_eq!(
        leads("source=journal&line=990&text=of+the+kubelet"),
        format!("{kubelet}&from=960&mark=990#l990")
    );
    assert_eq!(leads("source=/var/log/other.log&line=1&text=line+500+of"), "q=line%20500%20of");
    assert_eq!(leads("source=journal&line=1&text=nobody+said+this"), "q=nobody%20said%20this");
    assert_eq!(hub.get(&format!("/logs/{}/find?source=journal&line=1&text=x", "0".repeat(64))).status, 404);
    let log = hub.get(&format!("/logs/{digest}?path=bootstrap/journals/kubelet.log&from=12&mark=42")).text();
    assert!(log.contains("<li id=\"L42\" class=\"marked\">"), "{log}");
    assert!(hub.get(&format!("/logs/{digest}")).text().contains("bootstrap/machine/hostname"));
    assert!(hub.get(&format!("/logs/{digest}?q=line%20999")).text().contains("line 999 of the kubelet"));
    assert_eq!(hub.get("/logs/00ff").status, 404);

    assert!(hub.keeps(&digest));
    assert_eq!(hub.request("DELETE", "/api/v1/nodes/n1", &[], b"").status, 204);
    let gone = || (!hub.keeps(&digest)).then_some(());
    eventually("a node that is forgotten to leave no bundle", Duration::from_secs(30), gone).unwrap();
}

#[test]
fn a_bundle_that_was_cut_is_kept_for_what_is_whole() {
    let hub = TestHub::start();
    let lines: Vec<String> =
        (0..50_000u64).map(|number| format!("{:x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    let bytes = bundle("n1", &lines);
    let cut = &bytes[..bytes.len() / 2];
    let record = hub.request("POST", "/api/v1/nodes/n1/bundles", &[], cut);
    // The first file is complete, the second one is truncated.
    assert_eq!((record.status, record.json()["cut"].as_bool()), (200, Some(true)), "{record:?}");
    let digest = record.json()["digest"].as_str().unwrap().to_owned();
    let files = hub.json(&format!("/api/v1/bundles/{digest}/files"));
    assert_eq!(files["files"][0]["path"], "bootstrap/machine/hostname", "{files}");
    let lines = hub.json(&format!("/api/v1/bundles/{digest}/lines?path=bootstrap/machine/hostname"));
    assert_eq!(lines["lines"][0]["text"], "n1", "{lines}");
    assert!(hub.get(&format!("/logs/{digest}")).text().contains("bootstrap/machine/hostname"));
    // A bundle truncated within its first file contains nothing to store.
    let nothing = hub.request("POST", "/api/v1/nodes/n1/bundles", &[], &bytes[..64]);
    assert_eq!(nothing.status, 422, "{nothing:?}");
}

#[test]
fn open_pages_hear_of_changes() {
    let hub = TestHub::start();
    let mut stream = TcpStream::connect(hub.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let request = format!("GET /api/v1/events HTTP/1.1\r\nhost: {}\r\n\r\n", hub.address);
    stream.write_all(request.as_bytes()).unwrap();
    hub.stored(&envelope("n1", 1, running()));
    let mut heard = String::new();
    let mut buffer = [0; 4096];
    while !heard.contains("event: changed") {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "the stream ended: {heard}");
        heard += &String::from_utf8_lossy(&buffer[..count]);
    }
    assert!(heard.contains("text/event-stream"), "{heard}");
}

#[test]
fn causes_metrics_and_health_are_told() {
    let hub = TestHub::start();
    hub.stored(&envelope("n1", 1, no_dns()));
    let trend = hub.json("/api/v1/trend?hours=1&steps=4");
    assert_eq!(trend["points"][0]["cause"], "dns-resolution-failure");
    assert_eq!(
        (trend["points"][0]["step"].as_u64(), trend["points"][0]["nodes"].as_u64()),
        (Some(3), Some(1))
    );
    assert!(hub.get("/causes").text().contains("dns-resolution-failure"));
    let metrics = hub.get("/metrics").text();
    assert!(metrics.contains("landfall_hub_reports_total{outcome=\"stored\"} 1"), "{metrics}");
    assert!(metrics.contains("landfall_hub_nodes{state=\"failed\"} 1"), "{metrics}");
    assert!(metrics.contains("landfall_hub_troubled_nodes{cause=\"dns-resolution-failure\"} 1"), "{metrics}");
    assert!(metrics.contains("landfall_hub_accept_seconds_count 1\n"), "{metrics}");
    let value = |name: &str| -> u64 {
        metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
    };
    assert!(value("landfall_hub_store_bytes ") > 10_000, "{metrics}");
    let packed = bundle("n1", &["a line".to_owned()]);
    assert_eq!(hub.request("POST", "/api/v1/nodes/n1/bundles", &[], &packed).status, 200);
    let metrics = hub.get("/metrics").text();
    assert!(metrics.contains(&format!("landfall_hub_bundle_bytes {}\n", packed.len())), "{metrics}");
    for path in ["/livez", "/readyz", "/healthz"] {
        assert_eq!(hub.get(path).text(), "ok");
    }
}

/// Checks the responses against the document, which is generated from the same table as the router.
#[test]
fn every_address_of_the_document_is_served() {
    let hub = TestHub::start();
    let document = hub.json("/api/v1/openapi.json");
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 15, "{}", paths.len());
    for (path, methods) in paths {
        let address =
            path.replace("{turn}", "1").replace("{node}", "n1").replace("{digest}", &"0".repeat(64));
        if path.ends_with("/events") {
            continue;
        }
        for method in methods.as_object().unwrap().keys() {
            let answer = hub.request(&method.to_uppercase(), &address, &[], b"");
            assert!(!matches!(answer.status, 0 | 405 | 500), "{method} {address}: {answer:?}");
            let told = answer.status != 404 || answer.json()["detail"] != "there is nothing at this address";
            assert!(told, "{method} {address}: {answer:?}");
        }
        assert_eq!(hub.request("PATCH", &address, &[], b"").status, 405, "{path}");
    }
}

#[test]
fn what_is_not_understood_is_a_page_to_people_and_a_problem_to_programs() {
    let hub = TestHub::start();
    let page = hub.request("GET", "/nope", &[("accept", "text/html,application/xhtml+xml,*/*;q=0.8")], b"");
    assert!(page.status == 404 && page.head.contains("text/html"), "{page:?}");
    assert!(page.text().contains("there is nothing at this address"), "{page:?}");
    for (method, path, status) in [
        ("GET", "/nope", 404),
        ("PATCH", "/api/v1/fleet", 405),
        ("GET", "/api/v1/fleet?limit=99999999999", 400),
        ("GET", "/api/v1/nodes/n1/history/x", 400),
    ] {
        let problem = hub.request(method, path, &[("accept", "*/*")], b"");
        assert!(problem.status == status && problem.head.contains("application/problem+json"), "{problem:?}");
        assert!(problem.json()["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem:?}");
    }
    let page = hub.request("GET", "/?limit=many", &[("accept", "text/html")], b"");
    assert!(page.status == 400 && page.text().contains("<!doctype html>"), "{page:?}");
}
