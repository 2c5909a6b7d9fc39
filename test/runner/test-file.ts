/** Runs one test file in a process of its own, by the events of node:test, and ends it at its limit. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { EventData } from "node:test";
import { run } from "node:test";
import type { TestEvent } from "node:test/reporters";
import { inspect } from "node:util";
import { waitFor } from "../wait-for.ts";
import { root } from "./groups.ts";
import type { Result } from "./result.ts";

/** A process that was told to end removes its servers and VMs; one with an endless loop hears nothing. */
const endingMs = 60_000;

/** A test takes so much of its file's limit, so that what comes after it is reported. */
const testShare = 2 / 3;

export interface FileOptions {
  /** For the whole file. */
  limitMs: number;
  /** Part of the titles of the tests that run; undefined for all. */
  title: string | undefined;
  /** Ends the run early. */
  signal: AbortSignal;
}

export async function runFile(file: string, result: Result, { limitMs, title, signal }: FileOptions): Promise<void> {
  const limit = AbortSignal.timeout(limitMs);
  const ended = AbortSignal.any([limit, signal]);
  const events: AsyncIterable<TestEvent> = run({
    files: [file],
    cwd: root,
    execArgv: ["--import", join(root, "test/failures.ts")],
    signal: ended,
    timeout: limitMs * testShare,
    ...(title !== undefined && { testNamePatterns: new RegExp(escaped(title)) }),
  });
  const reader = new EventReader(file, result, { limitMs, isFiltered: title !== undefined });
  for await (const event of events) reader.read(event);
  if (ended.aborted) await endProcess(file, Math.min(endingMs, limitMs));
}

/** A regular expression that matches this text. */
function escaped(text: string): string {
  return text.replaceAll(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
}

type TestEnd = Extract<TestEvent, { type: "test:pass" | "test:fail" }>;

/** Title of a failure of the file itself. */
const outside = "outside of its tests";

interface ReaderOptions {
  limitMs: number;
  /** Some tests of the file are left out, perhaps all. */
  isFiltered: boolean;
}

class EventReader {
  readonly #file: string;
  readonly #result: Result;
  readonly #options: ReaderOptions;
  /** Titles of the suites and tests around the one that is reported, by depth. */
  readonly #titles: string[] = [];

  constructor(file: string, result: Result, options: ReaderOptions) {
    this.#file = file;
    this.#result = result;
    this.#options = options;
  }

  read(event: TestEvent): void {
    switch (event.type) {
      case "test:start":
        this.#titles.length = event.data.nesting;
        this.#titles.push(event.data.name);
        break;
      case "test:pass":
      case "test:fail":
        if (event.data.name === this.#file) this.#readFile(event);
        else this.#readTest(event);
        break;
      case "test:diagnostic":
        // Diagnostics without a file are sums, which are taken here.
        if (event.data.file !== undefined) this.#result.write(`ℹ ${event.data.message}\n`);
        break;
      case "test:stdout":
      case "test:stderr":
        this.#result.write(event.data.message);
        break;
    }
  }

  /** A file passes without a test, and fails when its tests have passed and it has not. */
  #readFile({ type, data }: TestEnd): void {
    const { limitMs, isFiltered } = this.#options;
    if (type === "test:fail") {
      const { error } = (data as EventData.TestFail).details;
      const isAborted = failureTypeOf(error) === "testAborted";
      this.#result.fail(
        outside,
        isAborted ? `ended before its own end; its limit is ${limitMs / 1_000} s` : reasonOf(error),
      );
    } else if (this.#result.count === 0 && !isFiltered) {
      this.#result.fail(outside, "the file has no test");
    }
  }

  #readTest({ type, data }: TestEnd): void {
    const result = this.#result;
    const title = [...this.#titles.slice(0, data.nesting), data.name].join(" › ");
    const { type: kind, duration_ms: ms } = data.details;
    if (kind !== "suite" && data.skip === undefined) result.timed.push({ title, ms });
    if (data.skip !== undefined || data.todo !== undefined) {
      const reason = data.skip ?? data.todo;
      result.skip(data.name, typeof reason === "string" ? reason : "");
    } else if (type === "test:fail") {
      const { error } = (data as EventData.TestFail).details;
      // A suite fails with its tests, which are counted.
      if (kind === "suite" && failureTypeOf(error) === "subtestsFailed") return;
      result.fail(title, `${data.file}:${data.line}\n${reasonOf(error)}`);
    } else if (kind !== "suite") {
      result.pass(title, ms);
    }
  }
}

function failureTypeOf(error: Error): unknown {
  return (error as { failureType?: unknown }).failureType;
}

/** node:test wraps what a test threw. */
function reasonOf(error: Error): string {
  const { cause = error } = error;
  return typeof cause === "string" ? cause : inspect(cause, { depth: 8 });
}

/** Waits for the end of the process that runs the file, which was told to; kills it if it does not end. */
async function endProcess(file: string, deadlineMs: number): Promise<void> {
  const isGone = () => processesOf(file).length === 0;
  await waitFor(`the end of ${file}`, isGone, { deadlineMs }).catch(() => {
    for (const pid of processesOf(file)) killIfThere(pid);
  });
}

function killIfThere(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

/** Children of this process that run the file. */
function processesOf(file: string): number[] {
  const children = readFileSync(`/proc/self/task/${process.pid}/children`, "utf8").trim().split(" ");
  return children.filter((pid) => pid !== "" && argumentsOf(pid).includes(file)).map(Number);
}

function argumentsOf(pid: string): string[] {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
  } catch {
    return []; // ended meanwhile
  }
}
