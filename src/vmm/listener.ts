/**
 * Listening sockets that QEMU inherits as open descriptors. QEMU has no access to the folder with their names, so a
 * compromised QEMU cannot replace a socket by another one or by a link.
 */
import { chmod, rename } from "node:fs/promises";
import { createServer } from "node:net";

/** Close it after the process that inherits it has been started, and before the folder is closed. */
export interface Listener {
  fd: number;
  close(): void;
}

/**
 * Makes a listening socket `name` in an open folder. The path goes through the folder's descriptor, because a UNIX
 * socket's path is limited to 107 bytes.
 */
export async function listenIn(folder: number, name: string): Promise<Listener> {
  const path = `/proc/self/fd/${folder}/${name}`;
  const temporary = `${path}.new`;
  const server = createServer((connection) => connection.destroy());
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen({ path: temporary, backlog: 8 }, resolve);
  });
  server.unref();
  try {
    await chmod(temporary, 0o600);
    // close() unlinks the name that Node listened on, so the socket gets another one.
    await rename(temporary, path);
    return { fd: descriptorOf(server), close: () => server.close() };
  } catch (error) {
    server.close();
    throw error;
  }
}

/**
 * The descriptor of a listening socket. Node has no public way to get it, so this reads its undocumented `_handle.fd`.
 * It throws, and listener.test.ts fails, when a version of Node lacks that field.
 */
export function descriptorOf(server: object): number {
  const { fd = -1 } = (server as { _handle?: { fd?: number } })._handle ?? {};
  if (fd < 0) throw new Error("this version of Node does not reveal the descriptor of a listening socket");
  return fd;
}
