/** Exec streams: the time to the first byte, and whether fifty at once deliver every byte. */
import { createHash } from "node:crypto";
import type { Fixture } from "./fixture.ts";
import { above } from "./report.ts";
import type { Service } from "./service.ts";
import { BenchSocket } from "./socket.ts";
import { timed } from "./statistics.ts";

const batches = 5;
const perBatch = 20;
const streamsAtOnce = 50;
const printedBytes = 1_000_000;

export async function streams(fixture: Fixture): Promise<void> {
  const id = await fixture.service.createRunning();
  await firstByte(fixture, id);
  await concurrent(fixture, id);
  await fixture.service.destroy(id);
}

/** Against the same command in the foreground, whose answer waits for the end of the process. */
async function firstByte({ service, report }: Fixture, id: string): Promise<void> {
  const streamed: number[] = [];
  const answered: number[] = [];
  for (let batch = 0; batch < batches; batch++) {
    for (let each = 0; each < perBatch; each++) {
      const socket = await BenchSocket.open(service, `/v1/capsules/${id}/exec/stream`);
      streamed.push(
        await timed(async () => {
          const printed = socket.until(({ type }) => type === "stdout");
          socket.say({ type: "start", cmd: "echo", args: ["x"] });
          await printed;
        }),
      );
      socket.close();
    }
    for (let each = 0; each < perBatch; each++) answered.push(await timed(() => service.exec(id, "echo", "x")));
  }
  report.note("firstByte", streamed, { foreground: above(streamed, "echo in the foreground", answered) });
}

async function concurrent({ service, report }: Fixture, id: string): Promise<void> {
  let exact = 0;
  const ms = await timed(async () => {
    const runs = Array.from({ length: streamsAtOnce }, () => isExact(service, id));
    exact = (await Promise.all(runs)).filter(Boolean).length;
  });
  report.note("streamsAtOnce", [(streamsAtOnce * printedBytes) / 1_000 / ms], { exact: { value: exact } });
}

/** Runs a command that prints random bytes on stdout and their hash on stderr; true when they match. */
async function isExact(service: Service, id: string): Promise<boolean> {
  const socket = await BenchSocket.open(service, `/v1/capsules/${id}/exec/stream?encoding=base64`);
  const hash = createHash("sha256");
  let said = "";
  const ended = socket.until(({ type, data = "" }) => {
    if (type === "stdout") hash.update(Buffer.from(data, "base64"));
    if (type === "stderr") said += Buffer.from(data, "base64");
    return type === "exit" || type === "error";
  });
  const script = `f=$(mktemp); head -c ${printedBytes} /dev/urandom > $f; cat $f; sha256sum < $f >&2; rm $f`;
  socket.say({ type: "start", cmd: "bash", args: ["-c", script] });
  await ended;
  return said.startsWith(hash.digest("hex"));
}
