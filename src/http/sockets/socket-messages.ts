/** How a WebSocket's messages stand in the OpenAPI document, which has no words of its own for them. */
import Type, { type TSchema } from "typebox";

export function socketMessages(client: TSchema | undefined, server: TSchema) {
  return {
    "x-websocket": { ...(client === undefined ? {} : { client }), server },
    response: { 101: Type.Null() },
  };
}
