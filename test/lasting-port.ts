/** A port for a server that is to come back on it: the kernel gives it to no other program meanwhile. */
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { waitFor } from "./wait-for.ts";

const first = 10_000;

/** A free port below those that the kernel gives to programs that ask for any. */
export async function lastingPort(): Promise<string> {
  const [given = 0] = readFileSync("/proc/sys/net/ipv4/ip_local_port_range", "utf8").split("\t").map(Number);
  return waitFor(`a free port from ${first} to ${given}`, async () => {
    const port = first + Math.floor(Math.random() * (given - first));
    const server = createServer().listen(port, "127.0.0.1");
    const isFree = await once(server, "listening").then(
      () => true,
      () => false,
    );
    server.close();
    return isFree && String(port);
  });
}
