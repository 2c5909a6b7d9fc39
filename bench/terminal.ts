/** A keystroke's echo in a terminal session, against the echo that a program inside the guest gets from its own terminal. */
import type { Figure } from "./figure.ts";
import type { Rig } from "./rig.ts";
import { BenchSocket } from "./socket.ts";
import { summarize, timed } from "./statistics.ts";

const batches = 4;
const perBatch = 50;
/** One line holds all that a batch types. */
const cols = 400;

/** Bash reads keys one by one and echoes them itself, here and there. */
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

export async function terminal(rig: Rig): Promise<Figure[]> {
  const id = await rig.createRunning();
  const outside: number[] = [];
  const inside: number[] = [];
  for (let batch = 0; batch < batches; batch++) {
    inside.push(...(JSON.parse((await rig.exec(id, "python3", "-c", echoInside)).stdout) as number[]));
    outside.push(...(await echoes(rig, id)));
  }
  await rig.destroy(id);
  const measured = summarize(outside);
  const yardstick = summarize(inside);
  return [
    {
      name: "a keystroke's echo in a PTY session",
      unit: "ms",
      measured,
      comparedWith: { name: "in a terminal inside the guest", measured: yardstick },
      target: { said: "p50 above the one inside, ms ≤ 3", value: measured.p50 - yardstick.p50, most: 3 },
    },
  ];
}

async function echoes(rig: Rig, id: string): Promise<number[]> {
  const socket = await BenchSocket.open(rig, `/v1/capsules/${id}/pty`);
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
