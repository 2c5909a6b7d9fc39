/** Rows of the command table about connections to capsules. */
import type { Commands } from "./command.ts";

export const networkCommands: Commands = {
  ports: {
    usage: "ID",
    meaning: "list the ports on which servers in a capsule listen",
    options: {},
    words: [1, 1],
    completes: "capsule",
    examples: [["capsule ports ID", "TCP only; the capsule must run"]],
    load: async () => (await import("./processes.ts")).ports,
  },
  forward: {
    usage: "ID [BIND:][LOCAL:]PORT… | --stdio ID PORT",
    meaning: "connect local ports, or standard input and output, to servers in a capsule",
    details:
      "Each connection to a local port is one to 127.0.0.1, ::1 or eth0's address in the capsule. BIND is 127.0.0.1 and LOCAL is PORT by " +
      "default; 0 is any free port. A line for each is printed once it listens. Ends by Ctrl-C. A capsule with auto_resume is resumed " +
      "by a connection.",
    options: { stdio: { meaning: "one connection, of standard input and output: for ssh's ProxyCommand" } },
    words: [2, 33],
    completes: "capsule",
    examples: [
      ["capsule forward ID 5432", "psql -h 127.0.0.1 reaches the database in the capsule"],
      ["capsule forward ID 8080:80 0.0.0.0:9000:90", "other local ports, and for other machines"],
      ["ssh -o ProxyCommand='capsule forward --stdio ID 22' user@ID", "ssh to a capsule"],
    ],
    load: async () => (await import("./forward.ts")).forward,
  },
};
