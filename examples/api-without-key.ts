/**
 * Code in a capsule calls an API without having its key: the service sets the header outside of the capsule. Set API_URL and API_KEY,
 * such as https://api.openai.com/v1/models and a key of OpenAI.
 */
import { Capsule } from "../src/sdk/sdk.ts";

const { API_URL = "https://api.openai.com/v1/models", API_KEY = "" } = process.env;
const host = new URL(API_URL).hostname;

const code = `
import os, urllib.request
with urllib.request.urlopen(os.environ["API_URL"]) as answer:
    print(answer.status, answer.read(200).decode())
`;

await using capsule = await Capsule.create({
  network: { egress: "allowlist", allow: [host], inject: [{ host, headers: { Authorization: `Bearer ${API_KEY}` } }] },
  envs: { API_URL: API_URL.replace("https:", "http:") }, // it leaves as HTTPS
  timeoutSec: 600,
});
const { stdout, stderr, exitCode } = await capsule.exec("python3", ["-c", code], { timeoutSec: 60 });
console.log(exitCode === 0 ? stdout : stderr);
const variables = await capsule.exec("env");
console.log(variables.stdout.includes(API_KEY) ? "the capsule has the key" : "the capsule does not have the key");
