/**
 * Sockets that are made for QEMU and handed to it as open descriptors: it never needs to see, or to write to, the folder
 * they lie in. A QEMU that its guest has taken over can so neither put another socket in their place nor a link.
 */
import { chmod, rename } from "node:fs/promises";
import { createServer } from "node:net";

/** To be closed as soon as the process that shall own the socket has been started, and before the folder is. */
export interface Listener {
  fd: number;
  close(): void;
}

/**
 * A listening socket under `name` in an open folder: through the folder's descriptor, a path is short enough however
 * deep it lies.
 */
export async function listenIn(folder: number, name: string): Promise<Listener> {
  const path = `/proc/self/fd/${folder}/${name}`;
  const made = `${path}.new`;
  const server = createServer((stranger) => stranger.destroy());
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen({ path: made, backlog: 8 }, resolve);
  });
  server.unref();
  try {
    await chmod(made, 0o600);
    // Closing it removes what it was made as, and must not remove what it is from here on.
    await rename(made, path);
    return { fd: descriptorOf(server), close: () => server.close() };
  } catch (error) {
    server.close();
    throw error;
  }
}

/** Node hands a listening socket to its own workers only; to any other program it goes by its descriptor. */
function descriptorOf(server: object): number {
  const { fd = -1 } = (server as { _handle?: { fd?: number } })._handle ?? {};
  if (fd < 0) throw new Error("the descriptor of a listening socket cannot be found out");
  return fd;
}
