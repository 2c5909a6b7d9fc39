/** Doctor's sentence about the network, by the answers of the service. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { connect } from "node:net";
import { describe, test } from "node:test";
import { type Ask, Listener, tryNetwork } from "./doctor-network.ts";

const denied = { verdict: "denied", reason: "egress none", address: "192.0.2.1", port: 9, count: 1 };

/** A service whose capsule dials as told. */
function service({
  unsupported = false,
  recent = [denied],
  egress = "allowlist",
  reached = true,
  resolves = true,
}): Ask {
  return async (method, path, body) => {
    if (method === "PUT") {
      assert.equal(path, "/v1/capsules/cl-a/network");
      return { unsupported, recent, effective: { egress, ...body } };
    }
    const { args } = body as { args: string[] };
    const isHost = args[2] === "host.capsule.internal";
    if (args[2]?.endsWith(".invalid") === true)
      return {
        stdout: `[Errno -2] ${resolves ? "Name or service not known" : "Temporary failure in name resolution"}`,
      };
    return { stdout: isHost && reached ? "doctor was reached" : "[Errno 113] No route to host" };
  };
}

describe("the network is well", () => {
  test("where a connection is denied, and a granted one reaches this machine", async () => {
    const { word, text } = await tryNetwork(service({}), "/v1/capsules/cl-a", 4_000);
    assert.deepEqual([word, text.includes("reached this machine")], ["ok", true]);
  });

  test("where a connection is denied, and none can be allowed", async () => {
    for (const [port, egress] of [
      [undefined, "allowlist"],
      [4_000, "none"],
    ] as const) {
      const closed: Ask = async (method, path, body) => {
        const answer = await service({})(method, path, body);
        return method === "PUT" ? { ...(answer as object), effective: { egress } } : answer;
      };
      assert.equal((await tryNetwork(closed, "/v1/capsules/cl-a", port)).word, "ok");
    }
  });
});

describe("a warning has its remedy", () => {
  test("where the image is older than the network", async () => {
    const { word, text } = await tryNetwork(service({ unsupported: true }), "/v1/capsules/cl-a", undefined);
    assert.deepEqual([word, text.includes("./dev image")], ["warning", true]);
  });

  test("where nobody has decided", async () => {
    const { word, text } = await tryNetwork(service({ recent: [] }), "/v1/capsules/cl-a", 4_000);
    assert.deepEqual([word, text.includes("No route to host"), text.includes("log")], ["warning", true, true]);
  });

  test("where no resolver answers", async () => {
    for (const port of [4_000, undefined]) {
      const { word, text } = await tryNetwork(service({ resolves: false }), "/v1/capsules/cl-a", port);
      assert.deepEqual([word, text.includes("/etc/resolv.conf")], ["warning", true]);
    }
  });

  test("where what is allowed is not reached", async () => {
    const { word, text } = await tryNetwork(service({ reached: false }), "/v1/capsules/cl-a", 4_000);
    assert.deepEqual([word, text.includes("No route to host")], ["warning", true]);
  });
});

test("the listener greets", async () => {
  await using listener = await Listener.open();
  const socket = connect(listener.port, "127.0.0.1");
  const [greeting] = (await once(socket, "data")) as [Buffer];
  assert.equal(greeting.toString(), "doctor was reached");
  socket.destroy();
});
