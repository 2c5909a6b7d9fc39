import { once } from "node:events";
import { WebSocket } from "ws";
import { apiKey } from "./scenario.ts";
import { socketScenario } from "./sockets.ts";

await socketScenario(async (target, onText) => {
  const socket = new WebSocket(target, { headers: { "X-API-Key": apiKey } });
  socket.on("message", (data) => onText(String(data)));
  await once(socket, "open");
  return {
    send: (text) => socket.send(text),
    async close() {
      if (socket.readyState === WebSocket.CLOSED) return;
      socket.close();
      await once(socket, "close");
    },
    abort: () => socket.terminate(),
  };
});
