/**
 * All conformance tests, in one process and on one server, one file per section of the specification:
 *
 *   node --test test/conformance/suite.test.ts
 *
 * A section runs alone as well, on a server of its own. The imports stand in the order of the run.
 */
import assert from "node:assert/strict";
import { test, testsOf } from "./conforms.ts";
import "./sections/capsules.ts";
import "./sections/errors.ts";
import "./sections/bad-requests.ts";
import "./sections/exec.ts";
import "./sections/exec-stream.ts";
import "./sections/processes.ts";
import "./sections/pty.ts";
import "./sections/tickets.ts";
import "./sections/files.ts";
import "./sections/directories.ts";
import "./sections/lifecycle.ts";
import "./sections/snapshots.ts";
import "./sections/keys.ts";
import "./sections/events.ts";
import "./sections/metrics.ts";
import "./sections/operation.ts";
import "./sections/teams.ts";
import "./sections/secrets.ts";
import { server } from "./service.ts";
import { rows } from "./specification.ts";

test("every endpoint and every row of the error table has a test that passed", () => {
  assert.deepEqual(
    rows.filter((row) => testsOf(row).length === 0),
    [],
  );
});

const options = { skip: server === undefined && "CAPSULE_URL names a server whose log is not here" };
test("no request ended as internal_error", async () => assert.deepEqual(await server?.internalErrors(), []), options);
