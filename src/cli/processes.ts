/** Processes of a capsule: ps, kill, logs. */
import { type BackgroundProcess, hasCode, type KeptOutput, type OutputStream } from "../sdk/sdk.ts";
import { type Call, UsageError } from "./command.ts";
import { exitCodes, Failure } from "./failures.ts";
import { note, print, printJson, printLine, table } from "./screen.ts";
import { capsuleBy } from "./service.ts";

export async function ps(call: Call): Promise<number> {
  const capsule = await capsuleBy(await call.client(), call.words[0]!);
  const processes = await capsule.processes();
  if (call.isJson) await printJson(processes);
  else {
    const rows = processes.map(({ pid, user = "-", kind = "-", tag, cmd, args }) => [
      String(pid),
      user,
      kind,
      tag === "" ? "-" : tag,
      [cmd, ...args].join(" "),
    ]);
    await printLine(table(["PID", "USER", "KIND", "TAG", "COMMAND"], rows, process.stdout.columns));
  }
  return exitCodes.done;
}

const signals: Record<string, "SIGKILL" | "SIGTERM"> = {
  KILL: "SIGKILL",
  SIGKILL: "SIGKILL",
  9: "SIGKILL",
  TERM: "SIGTERM",
  SIGTERM: "SIGTERM",
  15: "SIGTERM",
};

export async function kill(call: Call): Promise<number> {
  const [id, selector] = call.words as [string, string];
  const signal = signals[(call.text("signal") ?? "KILL").toUpperCase()];
  if (signal === undefined) throw new UsageError("--signal takes KILL or TERM");
  const capsule = await capsuleBy(await call.client(), id);
  try {
    await capsule.process(selector).kill(signal);
  } catch (error) {
    if (!hasCode(error, "not_found") || !/^process "\d+"/.test(error.message)) throw error;
    const advice = "Only processes with a TAG in capsule ps ID are ended by it. Others: capsule exec ID -- kill PID";
    throw new Failure(`no background process has the PID ${selector}`, advice, "not_found");
  }
  if (call.isJson) await printJson({ id: capsule.id, selector, signal });
  else await printLine(`${selector} was sent ${signal}`);
  return exitCodes.done;
}

export async function logs(call: Call): Promise<number> {
  const [id, selector] = call.words as [string, string];
  const tail = tailOf(call.text("tail"));
  const capsule = await capsuleBy(await call.client({ streams: true }), id);
  const subject = capsule.process(selector);
  if (!call.isSet("follow")) {
    const { bytes, text, droppedBytes } = await subject.logs({ tail });
    if (call.isJson) await printJson({ text, droppedBytes });
    else await print(bytes);
    return exitCodes.done;
  }
  // The whole of it tells the offset of its end, from which the rest follows without a gap.
  const kept = await keptOf(subject);
  if (kept !== undefined) {
    const lines = tail === undefined ? kept.bytes : lastLines(kept.bytes, tail);
    if (call.isJson) await printJson({ channel: "both", text: new TextDecoder().decode(lines) });
    else await print(lines);
  }
  const stream = await subject.attach({ from: kept === undefined ? "now" : kept.droppedBytes + kept.bytes.length });
  return await follow(stream, call.isJson);
}

/** Undefined where the capsule's agent, saved by an earlier release, keeps no output. */
async function keptOf(subject: BackgroundProcess): Promise<KeptOutput | undefined> {
  try {
    return await subject.logs();
  } catch (error) {
    if (!hasCode(error, "conflict")) throw error;
    note("This capsule keeps no output, since it was saved by an earlier release: output from now on.");
    return undefined;
  }
}

async function follow(stream: OutputStream, isJson: boolean): Promise<number> {
  let isLeft = false;
  process.once("SIGINT", () => {
    isLeft = true;
    stream.close();
  });
  try {
    for await (const { channel, bytes, text } of stream) {
      if (isJson) await printJson({ channel, text });
      else await print(bytes);
    }
  } catch (error) {
    if (!isLeft) throw error;
  }
  if (stream.exitCode !== undefined && process.stderr.isTTY)
    note(`The process ended with exit code ${stream.exitCode}.`);
  return exitCodes.done;
}

function tailOf(text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  if (!/^[0-9]{1,15}$/.test(text)) throw new UsageError("--tail takes a number of lines");
  return Number(text);
}

const newline = 10;

/** A last line without its end counts. */
export function lastLines(bytes: Uint8Array, lines: number): Uint8Array {
  if (lines === 0) return bytes.subarray(bytes.length);
  let start = bytes.length - (bytes.at(-1) === newline ? 1 : 0);
  for (let line = 0; line < lines; line++) {
    const end = start === 0 ? -1 : bytes.lastIndexOf(newline, start - 1);
    if (end === -1) return bytes;
    start = end;
  }
  return bytes.subarray(start + 1);
}
