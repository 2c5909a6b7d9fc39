/** NOTICE: what the agent tells about the whole guest. */
import { flag, whole } from "./protocol.ts";
import { ProtocolError } from "./records.ts";

const halting = 1;

export function decodeNotice(payload: Buffer): { reboot: boolean } {
  return whole(payload, (fields) => {
    const kind = fields.u16();
    if (kind !== halting) throw new ProtocolError(`a notice of unknown kind ${kind}`);
    return { reboot: flag(fields) };
  });
}
