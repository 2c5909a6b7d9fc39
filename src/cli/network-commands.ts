/** Rows of the command table about the network of capsules and connections to them. */
import type { Command, Commands } from "./command.ts";

const module = () => import("./network.ts");

/** `create`, `run` and `network` take these. */
export const networkOptions: Command["options"] = {
  egress: { value: "EGRESS", meaning: "what it may reach: none, allowlist or public; default: the service's" },
  allow: {
    value: "DEST",
    isList: true,
    meaning: "what allowlist reaches: a domain, *.domain, IPv4 address or range, or DEST:PORT",
  },
  deny: { value: "DEST", isList: true, meaning: "an IPv4 address or range that it never reaches, or DEST:PORT" },
  "public-port": { value: "PORT", isList: true, meaning: "a port whose URL asks for no key" },
};

export const networkCommands: Commands = {
  ports: {
    usage: "ID",
    meaning: "list the ports on which servers in a capsule listen",
    options: {},
    words: [1, 1],
    completes: "capsule",
    examples: [["capsule ports ID", "TCP only; the capsule must run"]],
    load: async () => (await module()).ports,
  },
  network: {
    usage: "ID [--egress EGRESS] [--allow DEST]… [--deny DEST]… [--public-port PORT]…",
    meaning: "show or replace the network of a capsule",
    details:
      "With an option the whole network is replaced: what is left out gets its default. On a running capsule it holds when the command " +
      "ends: open connections that it forbids are reset. The last destinations are listed, for --allow: up to ten each that were reached, denied, and allowed but in vain.",
    options: networkOptions,
    words: [1, 1],
    completes: "capsule",
    examples: [
      ["capsule network ID", "what was asked for, what is in effect, and the last destinations"],
      ["capsule network ID --egress allowlist --allow pypi.org", "nothing else any more"],
      ["capsule network ID --public-port 8000", "anybody may open that port's URL"],
      ["capsule network ID --egress none", "nothing goes out, and no port is public"],
    ],
    load: async () => (await module()).network,
  },
  url: {
    usage: "ID PORT [--open] [--expires TIME]",
    meaning: "print a link that opens a port of a capsule without a key",
    details: "For web servers. The link works for an hour, or for TIME; it is made whatever the capsule's status.",
    options: {
      open: { meaning: "open it in a browser, too" },
      expires: { value: "TIME", meaning: "life of the link: seconds, or 90s, 5m, 2h, 7d; default: 1h" },
    },
    words: [2, 2],
    completes: "capsule",
    examples: [
      ["capsule url ID 8000", "for a colleague"],
      ["capsule url ID 8000 --open --expires 7d", "a week, and at once in a browser"],
    ],
    load: async () => (await module()).url,
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
