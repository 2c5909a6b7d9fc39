/**
 * All conformance tests, in one process and on one server, one file per section of the specification:
 *
 *   node --test test/conformance/main.ts
 *
 * A single file runs as well, on a server of its own. The imports stand in the order of the run; coverage is last.
 */
import "./capsules.test.ts";
import "./errors.test.ts";
import "./exec.test.ts";
import "./exec-stream.test.ts";
import "./processes.test.ts";
import "./pty.test.ts";
import "./files.test.ts";
import "./directories.test.ts";
import "./lifecycle.test.ts";
import "./snapshots.test.ts";
import "./coverage.test.ts";
