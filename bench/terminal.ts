/** A keystroke's echo in a terminal session, against the echo in a terminal of a program in the guest. */

import type { Fixture } from "./fixture.ts";
import { above } from "./report.ts";
import type { Service } from "./service.ts";
import { BenchSocket } from "./socket.ts";
import { timed } from "./statistics.ts";

const batches = 4;
const perBatch = 50;
/** Wide enough for a batch on one line. */
const cols = 400;

/** Bash reads and echoes key by key, in both cases. */
const shell = ["--norc", "--noprofile", "-i"];
const prompt = "ready> ";

const echoInside = `
import fcntl, json, os, pty, struct, termios, time
pid, fd = pty.fork()
if pid == 0:
    os.execve("/bin/bash", ["bash", *${JSON.stringify(shell)}], {"PS1": ${JSON.stringify(prompt)}, "TERM": "xterm-256color"})
fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, ${cols}, 0, 0))
seen = b""
while not seen.endswith(${JSON.stringify(prompt)}.encode()):
    seen += os.read(fd, 4096)
times = []
for _ in range(${perBatch}):
    began = time.perf_counter()
    os.write(fd, b"x")
    while b"x" not in os.read(fd, 4096): pass
    times.append((time.perf_counter() - began) * 1000)
print(json.dumps(times))
`;

export async function terminal({ service, report }: Fixture): Promise<void> {
  const id = await service.createRunning();
  const outside: number[] = [];
  const inside: number[] = [];
  for (let batch = 0; batch < batches; batch++) {
    inside.push(...(JSON.parse((await service.exec(id, "python3", "-c", echoInside)).stdout) as number[]));
    outside.push(...(await echoes(service, id)));
  }
  await service.destroy(id);
  report.note("keystroke", outside, { inside: above(outside, "in a terminal inside the guest", inside) });
}

async function echoes(service: Service, id: string): Promise<number[]> {
  const socket = await BenchSocket.open(service, `/v1/capsules/${id}/pty`);
  const prints = (text: string) =>
    socket.until(({ type, data = "" }) => type === "output" && Buffer.from(data, "base64").includes(text));
  const isReady = prints(prompt);
  socket.say({ type: "start", args: shell, envs: { PS1: prompt }, cols });
  await isReady;
  const samples: number[] = [];
  for (let each = 0; each < perBatch; each++) {
    samples.push(
      await timed(async () => {
        const isEchoed = prints("x");
        socket.say({ type: "input", data: Buffer.from("x").toString("base64") });
        await isEchoed;
      }),
    );
  }
  const ended = socket.until(({ type }) => type === "exit");
  socket.say({ type: "kill" });
  await ended;
  return samples;
}
