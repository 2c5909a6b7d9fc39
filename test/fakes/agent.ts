/**
 * An agent without a guest: a handful of commands, files in a map. What a test wants to see happen at its own pace it
 * drives through `runs`.
 */
import type { Agent, Command, OutputSink, RunningStream, Selector, Started } from "../../src/agent/agent.ts";
import { AgentFailure } from "../../src/agent/failure.ts";

/** One command that was run: what was asked, and the hands to play the guest. */
export class FakeRun implements RunningStream {
  readonly command: Command;
  readonly sink: OutputSink;
  consumedBytes = 0;
  stopped = false;
  cancelled = false;
  #over = false;

  constructor(command: Command, sink: OutputSink) {
    this.command = command;
    this.sink = sink;
  }

  consumed(bytes: number): void {
    this.consumedBytes += bytes;
  }

  stop(): void {
    this.stopped = true;
    queueMicrotask(() => this.exit(137));
  }

  cancel(): void {
    this.cancelled = true;
    this.#over = true;
  }

  print(channel: "stdout" | "stderr" | "pty", bytes: Uint8Array | string): void {
    if (!this.#over) this.sink.output(channel, Buffer.from(bytes));
  }

  exit(exitCode: number): void {
    if (this.#over) return;
    this.#over = true;
    this.sink.exited({ exitCode, guestDurationUs: 1_000 });
  }

  fail(error: Error): void {
    if (this.#over) return;
    this.#over = true;
    this.sink.failed(error);
  }
}

/** What the fake's commands do; `hang` waits for the test or for stop. */
const programs: Record<string, (run: FakeRun) => void> = {
  true: (run) => run.exit(0),
  echo: (run) => {
    run.print("stdout", `${run.command.args.join(" ")}\n`);
    run.exit(0);
  },
  exit: (run) => run.exit(Number(run.command.args[0])),
  hang: () => {},
};

export class FakeAgent implements Partial<Agent> {
  readonly runs: FakeRun[] = [];
  readonly started: Command[] = [];
  readonly signals: [Selector, string][] = [];
  /** Called with each run as it begins. */
  onRun: (run: FakeRun) => void = () => {};

  run(command: Command, sink: OutputSink): FakeRun {
    const run = new FakeRun(command, sink);
    this.runs.push(run);
    queueMicrotask(() => {
      const program = programs[command.cmd];
      if (program === undefined) {
        run.fail(new AgentFailure("command_not_found", "invalid_request", `${command.cmd}: command not found`));
        return;
      }
      sink.started({ pid: 100 + this.runs.length, tag: "" });
      program(run);
      this.onRun(run);
    });
    return run;
  }

  async start(command: Command): Promise<Started> {
    if (programs[command.cmd] === undefined) {
      throw new AgentFailure("command_not_found", "invalid_request", `${command.cmd}: command not found`);
    }
    if (this.started.some(({ tag }) => tag !== undefined && tag === command.tag)) {
      throw new AgentFailure("conflict", "conflict", `a live process has the tag ${command.tag}`);
    }
    this.started.push(command);
    return { pid: 500, tag: command.tag ?? "proc-0123abcd" };
  }
}
