/** Processes of a capsule: ps, kill, logs. */
import { type Call, UsageError } from "./command.ts";
import { exitCodes, Failure } from "./failures.ts";
import { note, print, printable, printJson, printLine, table } from "./screen.ts";
import { capsuleBy } from "./service.ts";

export async function ps(call: Call): Promise<number> {
  const capsule = await capsuleBy(await call.client(), call.words[0]!);
  const processes = await capsule.processes();
  if (call.isJson) await printJson(processes);
  else {
    const rows = processes.map(({ pid, tag, cmd, args }) => [
      String(pid),
      tag === "" ? "-" : tag,
      [cmd, ...args].join(" "),
    ]);
    await printLine(table(["PID", "TAG", "COMMAND"], rows, process.stdout.columns));
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
  await capsule.process(selector).kill(signal);
  if (call.isJson) await printJson({ id: capsule.id, selector, signal });
  return exitCodes.done;
}

export async function logs(call: Call): Promise<number> {
  const [id, selector] = call.words as [string, string];
  if (!call.isSet("follow"))
    throw new Failure(
      "earlier output of background processes is not kept",
      "Follow new output with --follow (-f), or start the command with its output redirected to a file.",
    );
  const capsule = await capsuleBy(await call.client({ streams: true }), id);
  const stream = await capsule.process(selector).attach();
  if (process.stderr.isTTY) note(`Output of ${printable(selector)} from now on; Ctrl-C leaves the process running.`);
  let isLeft = false;
  process.once("SIGINT", () => {
    isLeft = true;
    stream.close();
  });
  try {
    for await (const { channel, bytes, text } of stream) {
      if (call.isJson) await printJson({ channel, text });
      else await print(bytes, process[channel]);
    }
  } catch (error) {
    if (!isLeft) throw error;
  }
  if (stream.exitCode !== undefined && process.stderr.isTTY)
    note(`The process ended with exit code ${stream.exitCode}.`);
  return exitCodes.done;
}
