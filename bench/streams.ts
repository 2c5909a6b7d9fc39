/** Exec streams: how soon the first byte is there, and whether fifty at once keep every byte. */
import { createHash } from "node:crypto";
import type { Figure } from "./figure.ts";
import type { Rig } from "./rig.ts";
import { BenchSocket } from "./socket.ts";
import { summarize, timed } from "./statistics.ts";

const batches = 5;
const perBatch = 20;
const streamsAtOnce = 50;
const printedBytes = 1_000_000;

export async function streams(rig: Rig): Promise<Figure[]> {
  const id = await rig.createRunning();
  const figures = [await firstByte(rig, id), await concurrent(rig, id)];
  await rig.destroy(id);
  return figures;
}

/** Against the same command in the foreground, whose answer cannot come before its process was spawned and has ended. */
async function firstByte(rig: Rig, id: string): Promise<Figure> {
  const streamed: number[] = [];
  const answered: number[] = [];
  for (let batch = 0; batch < batches; batch++) {
    for (let each = 0; each < perBatch; each++) {
      const socket = await BenchSocket.open(rig, `/v1/capsules/${id}/exec/stream`);
      streamed.push(
        await timed(async () => {
          const printed = socket.until(({ type }) => type === "stdout");
          socket.say({ type: "start", cmd: "echo", args: ["x"] });
          await printed;
        }),
      );
      socket.close();
    }
    for (let each = 0; each < perBatch; each++) answered.push(await timed(() => rig.exec(id, "echo", "x")));
  }
  const measured = summarize(streamed);
  const yardstick = summarize(answered);
  return {
    name: "exec/stream, start to first byte of echo",
    unit: "ms",
    measured,
    comparedWith: { name: "echo in the foreground", measured: yardstick },
    target: { said: "p50 above the foreground, ms ≤ 2", value: Math.max(0, measured.p50 - yardstick.p50), most: 2 },
  };
}

async function concurrent(rig: Rig, id: string): Promise<Figure> {
  let exact = 0;
  const ms = await timed(async () => {
    const runs = Array.from({ length: streamsAtOnce }, () => isExact(rig, id));
    exact = (await Promise.all(runs)).filter(Boolean).length;
  });
  return {
    name: `${streamsAtOnce} exec streams at once, ${printedBytes} random bytes each`,
    unit: "MB/s",
    measured: summarize([(streamsAtOnce * printedBytes) / 1_000 / ms]),
    target: { said: `byte-exact streams = ${streamsAtOnce}`, value: exact, least: streamsAtOnce },
  };
}

/** A command that prints random bytes, and on its other output their hash. */
async function isExact(rig: Rig, id: string): Promise<boolean> {
  const socket = await BenchSocket.open(rig, `/v1/capsules/${id}/exec/stream?encoding=base64`);
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
