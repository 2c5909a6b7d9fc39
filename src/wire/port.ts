/** Ports of a capsule. */
import Type, { type Static } from "typebox";
import { CapsuleParams, Nullable } from "./schema.ts";

/** The text message that ends one direction of a connection; binary messages are its bytes. */
export const endMessage = "end";

export const PortParams = Type.Object({
  ...CapsuleParams.properties,
  port: Type.String({
    pattern: "^(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$",
    description: "A TCP port, 1 to 65535, without leading zeros.",
  }),
});

export const TcpMessage = Type.String({
  description: `A binary message is bytes of the connection; the text message \`${endMessage}\` is the end of this direction.`,
});

export const Port = Type.Object(
  {
    port: Type.Integer({ minimum: 1, maximum: 65_535 }),
    address: Type.String({ description: "An IPv4 or IPv6 address of the capsule; `0.0.0.0` and `::` are all." }),
    pid: Nullable(Type.Integer({ description: "null: the process was not found, or is not the capsule's own." })),
    cmd: Type.String({ description: "First word of the process's command line; empty where `pid` is null." }),
    public: Type.Boolean({ description: "Whether `url` asks for no key: `public_ports` of the network has it." }),
    url: Type.String({ format: "uri", description: "For HTTP; `ports/{port}/tcp` connects to any server." }),
  },
  { title: "Port" },
);
export type Port = Static<typeof Port>;

export const PortList = Type.Array(Port, { description: "By port and address." });
