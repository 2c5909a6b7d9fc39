/** Ports of a capsule. */
import Type from "typebox";
import { CapsuleParams } from "./schema.ts";

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
