/** The yardstick of reads: the same Fastify, in a process of its own, answering every GET of a capsule with one constant. */
import fastify from "fastify";

process.stdin.on("end", () => process.exit()).resume();
const answer = process.argv[2];
if (answer === undefined) throw new Error("usage: constant-server.ts ANSWER");
const app = fastify();
app.get("/v1/capsules/:id", (_request, reply) => {
  reply.type("application/json; charset=utf-8").send(answer);
});
console.log(await app.listen({ host: "127.0.0.1", port: 0 }));
