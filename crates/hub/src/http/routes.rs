//! The API as a table from which both the router and the OpenAPI document are generated.

/// An operation of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Reports,
    Fleet,
    Groups,
    Nodes,
    Node,
    History,
    PastReport,
    NodeBundles,
    NamedBundle,
    NodeProgress,
    Progress,
    Roles,
    Trend,
    Search,
    Bundle,
    BundleContent,
    BundleFiles,
    BundleLines,
    Tokens,
    Events,
    Console,
    OpenApi,
}

/// A path and its methods.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "schema"), expect(dead_code, reason = "read where the document is made"))]
pub(crate) struct Route {
    pub path: &'static str,
    pub operation: Operation,
    pub methods: &'static [Method],
}

/// A method of a path, as described in the document.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "schema"), expect(dead_code, reason = "read where the document is made"))]
pub(crate) struct Method {
    pub name: &'static str,
    pub summary: &'static str,
    /// Callers that may use the method.
    pub caller: &'static str,
    pub parameters: &'static [Parameter],
    /// The schema of the body and its media type.
    pub request: Option<(&'static str, &'static str)>,
    /// The status and the schema of the response; no schema if the response is not JSON.
    pub answer: (u16, Option<&'static str>),
}

#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "schema"), expect(dead_code, reason = "read where the document is made"))]
pub(crate) struct Parameter {
    pub name: &'static str,
    /// `string` or `integer`.
    pub kind: &'static str,
    pub about: &'static str,
}

const fn parameter(name: &'static str, kind: &'static str, about: &'static str) -> Parameter {
    Parameter { name, kind, about }
}

const fn get(summary: &'static str, parameters: &'static [Parameter], schema: &'static str) -> Method {
    Method { name: "get", summary, caller: "viewer", parameters, request: None, answer: (200, Some(schema)) }
}

const fn raw(summary: &'static str) -> Method {
    Method { name: "get", summary, caller: "viewer", parameters: &[], request: None, answer: (200, None) }
}

/// All paths of the API.
pub(crate) const ROUTES: &[Route] = &[
    Route {
        path: "/api/v1/reports",
        operation: Operation::Reports,
        methods: &[Method {
            name: "post",
            summary: "Take in one report (`application/json`), or many, one per line (`application/x-ndjson`). May be packed by gzip or zstd. \
                      An answer of 200 means that it is on the disk; a report that is here already is answered the same way.",
            caller: "node",
            parameters: &[],
            request: Some(("application/json", "Envelope")),
            answer: (200, Some("Receipt")),
        }],
    },
    Route {
        path: "/api/v1/fleet",
        operation: Operation::Fleet,
        methods: &[get(
            "The fleet: counts, groups by cause, and one page of nodes, worst first",
            &[
                parameter("state", "string", "Only nodes in this state"),
                parameter("cause", "string", "Only nodes with this cause; `none`: with none"),
                parameter("phase", "string", "Only nodes in this phase"),
                parameter("q", "string", "Only nodes whose name, title or cause holds this"),
                parameter("limit", "integer", "Nodes per page (default 200, at most 1000)"),
                parameter("offset", "integer", "Nodes to leave out"),
            ],
            "Fleet",
        )],
    },
    Route {
        path: "/api/v1/groups",
        operation: Operation::Groups,
        methods: &[get("What is wrong, one line per cause", &[], "Groups")],
    },
    Route {
        path: "/api/v1/nodes",
        operation: Operation::Nodes,
        methods: &[get(
            "All nodes, by name. Paging with `after` returns every node exactly once, even if nodes change meanwhile",
            &[
                parameter(
                    "after",
                    "string",
                    "Only nodes whose name comes after this one, which need not exist",
                ),
                parameter("limit", "integer", "Nodes per page (default 200, at most 1000)"),
            ],
            "NodePage",
        )],
    },
    Route {
        path: "/api/v1/nodes/{node}",
        operation: Operation::Node,
        methods: &[
            get("A node, its present report and its bundles", &[], "NodeView"),
            Method {
                name: "delete",
                summary: "Forget a node with its reports and bundles",
                caller: "operator",
                parameters: &[],
                request: None,
                answer: (204, None),
            },
        ],
    },
    Route {
        path: "/api/v1/nodes/{node}/history",
        operation: Operation::History,
        methods: &[get(
            "The turns of a node's verdict, newest first",
            &[
                parameter("before", "integer", "Only turns before this one"),
                parameter("limit", "integer", "Verdict changes per page (default 50, at most 1000)"),
            ],
            "History",
        )],
    },
    Route {
        path: "/api/v1/nodes/{node}/history/{turn}",
        operation: Operation::PastReport,
        methods: &[get("The report of a turn", &[], "Report")],
    },
    Route {
        path: "/api/v1/nodes/{node}/bundles",
        operation: Operation::NodeBundles,
        methods: &[Method {
            name: "post",
            summary: "Take in a bundle of the node. It is verified before it is kept.",
            caller: "node",
            parameters: &[],
            request: Some(("application/gzip", "binary")),
            answer: (200, Some("BundleRecord")),
        }],
    },
    Route {
        path: "/api/v1/nodes/{node}/bundles/{digest}",
        operation: Operation::NamedBundle,
        methods: &[Method {
            name: "put",
            summary: "Take in a bundle whose SHA-256 is known beforehand; may be repeated. With a token that many nodes share, the header \
                      `landfall-signature` holds the base64 of the node's Ed25519 signature over `landfall-bundle-v1`, the node's \
                      name and the SHA-256 in lower-case hexadecimal, each on a line, the last one without its end.",
            caller: "node",
            parameters: &[],
            request: Some(("application/gzip", "binary")),
            answer: (200, Some("BundleRecord")),
        }],
    },
    Route {
        path: "/api/v1/nodes/{node}/progress",
        operation: Operation::NodeProgress,
        methods: &[
            get(
                "How far the newest in-place bootstrap of a node is: its events, the last 256 at most, in their order",
                &[],
                "NodeProgress",
            ),
            Method {
                name: "post",
                summary: "Store one event of an in-place bootstrap. `attempt` and `sequence` identify it: events may arrive in any \
                          order and more than once. An answer of 200 means that it is on the disk.",
                caller: "node",
                parameters: &[],
                request: Some(("application/json", "Progress")),
                answer: (200, Some("ProgressReceipt")),
            },
        ],
    },
    Route {
        path: "/api/v1/progress",
        operation: Operation::Progress,
        methods: &[get(
            "In-place bootstraps, one line per node with its newest event, last received first, at most 1000",
            &[],
            "ProgressLines",
        )],
    },
    Route {
        path: "/api/v1/roles",
        operation: Operation::Roles,
        methods: &[get(
            "Gateways and tunnels that are watched: whether they are ready, and what they count",
            &[],
            "RoleList",
        )],
    },
    Route {
        path: "/api/v1/trend",
        operation: Operation::Trend,
        methods: &[get(
            "How many nodes turned to each cause, in steps of time",
            &[
                parameter("hours", "integer", "Hours to go back (default 24, at most 744)"),
                parameter("steps", "integer", "Number of steps (default 24, at most 500)"),
            ],
            "CauseTrend",
        )],
    },
    Route {
        path: "/api/v1/search",
        operation: Operation::Search,
        methods: &[get(
            "Reports whose evidence holds all the words, newest first",
            &[parameter("q", "string", "The words")],
            "FoundList",
        )],
    },
    Route {
        path: "/api/v1/bundles/{digest}",
        operation: Operation::Bundle,
        methods: &[get("What is known of a bundle", &[], "BundleRecord")],
    },
    Route {
        path: "/api/v1/bundles/{digest}/content",
        operation: Operation::BundleContent,
        methods: &[raw("The packed bundle")],
    },
    Route {
        path: "/api/v1/bundles/{digest}/files",
        operation: Operation::BundleFiles,
        methods: &[get("The files of a bundle", &[], "LogFiles")],
    },
    Route {
        path: "/api/v1/bundles/{digest}/lines",
        operation: Operation::BundleLines,
        methods: &[get(
            "Lines of a bundle, by number or by what they hold",
            &[
                parameter("path", "string", "Only of this file"),
                parameter("from", "integer", "The first line, counted from 1"),
                parameter("count", "integer", "Number of lines (default 200, at most 2000)"),
                parameter("q", "string", "Only lines that hold this"),
            ],
            "LogPage",
        )],
    },
    Route {
        path: "/api/v1/tokens",
        operation: Operation::Tokens,
        methods: &[Method {
            name: "post",
            summary: "Make a token for a node, for many nodes that share it, for a viewer or for an operator",
            caller: "operator",
            parameters: &[],
            request: Some(("application/json", "TokenWish")),
            answer: (200, Some("NewToken")),
        }],
    },
    Route {
        path: "/api/v1/events",
        operation: Operation::Events,
        methods: &[
            raw("Server-sent events: `changed` whenever a board would show something else"),
            Method {
                name: "post",
                summary: "Take in a CloudEvent 1.0 of the type `dev.landfall.report.v1`, structured or binary. The signed report is in \
                          `data.envelope`, or where `dataref` says, if that is the hub's own `--take-objects`.",
                caller: "node, nodes that share a token, or operator",
                parameters: &[],
                request: Some(("application/cloudevents+json", "any")),
                answer: (200, Some("Receipt")),
            },
        ],
    },
    Route {
        path: "/api/v1/console",
        operation: Operation::Console,
        methods: &[Method {
            name: "post",
            summary: "Take in what was captured of a serial console: every whole, signed report an agent wrote to it. 16 MiB at most.",
            caller: "node, nodes that share a token, or operator",
            parameters: &[],
            request: Some(("text/plain", "any")),
            answer: (200, Some("BatchAnswer")),
        }],
    },
    Route { path: "/api/v1/openapi.json", operation: Operation::OpenApi, methods: &[raw("This document")] },
];
