/**
 * All conformance tests, in one process and on one server, one file per section of the specification:
 *
 *   node --test test/conformance/suite.test.ts
 *
 * Sections run in parallel, because each waits for its own guest most of the time. The file of a section also runs
 * alone, on a server of its own.
 */
import assert from "node:assert/strict";
import { describe } from "node:test";
import { test, testsOf } from "./conforms.ts";
import * as archives from "./sections/archives.ts";
import * as autoResume from "./sections/auto-resume.ts";
import * as badRequests from "./sections/bad-requests.ts";
import * as capsules from "./sections/capsules.ts";
import * as deadlines from "./sections/deadlines.ts";
import * as directories from "./sections/directories.ts";
import * as disks from "./sections/disks.ts";
import * as errors from "./sections/errors.ts";
import * as events from "./sections/events.ts";
import * as exec from "./sections/exec.ts";
import * as execStream from "./sections/exec-stream.ts";
import * as fileChanges from "./sections/file-changes.ts";
import * as files from "./sections/files.ts";
import * as image from "./sections/image.ts";
import * as keptOutput from "./sections/kept-output.ts";
import * as keys from "./sections/keys.ts";
import * as lifecycle from "./sections/lifecycle.ts";
import * as metrics from "./sections/metrics.ts";
import * as network from "./sections/network.ts";
import * as operation from "./sections/operation.ts";
import * as portUrls from "./sections/port-urls.ts";
import * as ports from "./sections/ports.ts";
import * as processes from "./sections/processes.ts";
import * as pty from "./sections/pty.ts";
import * as secrets from "./sections/secrets.ts";
import * as snapshots from "./sections/snapshots.ts";
import * as starts from "./sections/starts.ts";
import * as stops from "./sections/stops.ts";
import * as teams from "./sections/teams.ts";
import * as tickets from "./sections/tickets.ts";
import * as watch from "./sections/watch.ts";
import { server, unexpectedErrors } from "./service.ts";
import { rows } from "./specification.ts";

/** The longest sections first, so that none runs alone at the end. */
const sections = [
  snapshots,
  image,
  disks,
  exec,
  pty,
  lifecycle,
  stops,
  execStream,
  processes,
  starts,
  keptOutput,
  archives,
  files,
  fileChanges,
  watch,
  operation,
  errors,
  capsules,
  badRequests,
  directories,
  secrets,
  teams,
  tickets,
  keys,
  metrics,
  events,
  deadlines,
  autoResume,
  ports,
  network,
  portUrls,
].flatMap((file): (() => void)[] => Object.values(file));

/** A server at CAPSULE_URL may have other clients. */
const atOnce = server === undefined ? 1 : 3;

describe("the service", { concurrency: atOnce }, () => {
  for (const begin of sections) begin();
});

test("every endpoint and every row of the error table has a test that passed or was skipped", () => {
  assert.deepEqual(
    rows.filter((row) => testsOf(row).length === 0),
    [],
  );
});

const options = { skip: server === undefined && "the log of the server at CAPSULE_URL is not on this machine" };
test(
  "the server logged no error that no test announced",
  async () => assert.deepEqual(await unexpectedErrors(), []),
  options,
);
