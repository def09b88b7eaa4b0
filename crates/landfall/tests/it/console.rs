//! The part of a serial console that a cloud keeps: with an agent's report on it, and without.

use std::fs;
use std::path::Path;
use std::time::Duration;

use landfall_testkit::Process;

use crate::command::Bench;

const LIMIT: Duration = Duration::from_secs(90);
/// The number of bytes that EC2 keeps.
const WINDOW: usize = 64 << 10;
const DEAD_DNS: &str = "\
[preflight] Running pre-flight checks
error: error execution phase preflight: couldn't validate the identity of the API Server: failed to request the \
cluster-info ConfigMap: Get \"https://api.c1.example:6443/api/v1/x\": dial tcp: lookup api.c1.example on 10.0.0.2:53: no such host
";

#[test]
fn the_report_of_an_agent_is_found_in_the_last_of_a_console() {
    let bench = Bench::new();
    bench.file("machine/etc/hostname", "castaway\n");
    bench.file("machine/var/log/cloud-init-output.log", DEAD_DNS);
    let console = bench.file("ttyS0", "[    0.000000] Linux version 6.1.0\r\n");
    let mut agent =
        Process::start("agent", Path::new(env!("CARGO_BIN_EXE_landfall")), bench.path(), |command| {
            command.current_dir(bench.path()).args(["agent", "--root", "machine", "--state", "state"]);
            command.args(["--console", "ttyS0"]);
        })
        .unwrap();
    let said = agent.wait_until("the report on the console", LIMIT, || {
        let said = fs::read(&console).ok()?;
        String::from_utf8_lossy(&said).contains("verdict failed cause=dns-resolution-failure").then_some(said)
    });
    drop(agent);
    // Before and after it the machine prints more than the window keeps.
    let noise = |lines: usize| -> Vec<u8> {
        (0..lines)
            .flat_map(|line| format!("[{line:5}.250117] nf_conntrack: a table is a table\r\n").into_bytes())
            .collect()
    };
    let all = [noise(3000), said.unwrap(), noise(700)].concat();
    bench.file("console.log", &all[all.len() - WINDOW..]);
    let run = bench.run(&["diagnose", "--output", "json", "console.log"]);
    assert_eq!(run.code, 2, "{run:?}");
    let report = run.report();
    assert_eq!(report["verdict"]["cause"], "dns-resolution-failure");
    let names = report["sources"].as_array().unwrap().iter().map(|source| source["name"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["console.log", "console.log:report"]);
}

/// Colors, control characters, status lines, lines that the kernel split, and a truncated beginning.
#[test]
fn raw_consoles_tell_the_cause_without_an_agent() {
    let status = "\x1b[0;32m  OK  \x1b[0m] Reached target \x1b[0;1;39mbasic.target\x1b[0m - Basic System.\r\n\
                  [\x1b[0;1;31m*     \x1b[0m] A start job is running for cloud-final.service (1min 3s / no limit)\r\x1b[K";
    for (cause, console) in [
        (
            "kernel-panic",
            "[    1.203321] md: ... autorun DONE.\r\n\
             [    1.210000] VFS: Cannot open root device \"UUID=1\" or unknown-block(0,0): error -6\r\n\
             [    1.220001] Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)\r\n\
             [    1.230002] CPU: 0 PID: 1 Comm: swapper/0 Not tainted 6.1.0 #1\r\n",
        ),
        (
            "ignition-fetch-failed",
            "[   10.811943] ignition[612]: GET http://10.0.0.9/worker.ign: attempt #7\r\n\
             [\x1b[0;1;31mFAILED\x1b[0m] Failed to start \x1b[0;1;39mignition-fetch.service\x1b[0m - Ignition (fetch).\r\n\
             [   70.112233] ignition[612]: failed to fetch config: Get \"http://10.0.0.9/worker.ign\": dial tcp 10.0.0.9:80: \
             connect: connection refused\r\n\
             [   70.113000] ignition[612]: Ignition failed: failed to fetch config: unable to fetch resource in time\r\n",
        ),
        (
            "dns-resolution-failure",
            "[   33.1] cloud-init[812]: [preflight] Running pre-flight checks\r\n\
             [   63.2] cloud-init[812]: \x1b[31merror execution phase preflight\x1b[0m: couldn't validate the identity of the API \
             Server: failed to request the cluster-info ConfigMap: Get \"https://api.c1.example:6443/x\": dial tcp: lookup \
             api.c1.example on 10.0.0.2:53: no such host\r\n\
             To see the stack trace of this er[   63.3] IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready\r\n\
             ror execute with --v=5 or higher\r\n",
        ),
    ] {
        let bench = Bench::new();
        bench.file("console.log", format!("{status}{console}\r\nn1 login: \x07"));
        let run = bench.run(&["diagnose", "--output", "json", "console.log"]);
        assert_eq!(run.report()["verdict"]["cause"], cause, "{run:?}");
    }
}
