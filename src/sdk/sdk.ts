/**
 * The exports of the package: a client of Capsule, a service of microVM sandboxes, for Node, Bun, Deno and browsers.
 *
 * ```ts
 * await using capsule = await Capsule.create();
 * const { stdout } = await capsule.exec("python3", ["-c", "print(6 * 7)"]);
 * ```
 */

export { bytesOfName, nameFromBytes } from "../wire/file-names.ts";
export {
  type AttachOptions,
  BackgroundProcess,
  type KeptOutput,
  type LogsOptions,
  type ProcessResult,
} from "./background-process.ts";
export { Capsule } from "./capsule.ts";
export type {
  CapsuleChange,
  CapsuleConditions,
  CapsulePolicies,
  MetricOptions,
  NetworkOptions,
} from "./capsule-options.ts";
export { Client, Keys, Templates } from "./client.ts";
export type { CreateOptions } from "./create.ts";
export {
  type ConnectionCode,
  ConnectionError,
  type ErrorCode,
  hasCode,
  isCommandNotFound,
  ServiceError,
} from "./errors.ts";
export type { EventOptions } from "./events.ts";
export type { CommandOptions, ExecOptions, ExecResult, StreamOptions } from "./exec.ts";
export type { FileContent } from "./file-content.ts";
export {
  type ArchiveOptions,
  type ChownOptions,
  Files,
  type ListOptions,
  type MoveOptions,
  type ReadOptions,
  type RecursiveOptions,
  type SignedUrl,
  type UrlOptions,
  type WriteOptions,
} from "./files.ts";
export { type OutputChunk, OutputStream } from "./output-stream.ts";
export { PortConnection } from "./port-connection.ts";
export { Pty, type PtyConnection, type PtyOptions } from "./pty.ts";
export type {
  CapsuleInfo,
  CapsuleMetric,
  CapsuleStatus,
  DeadlineAction,
  Egress,
  FileEntry,
  HealthInfo,
  KeyInfo,
  LimitInfo,
  NetworkInfo,
  NetworkState,
  NewKey,
  PortInfo,
  PortUrl,
  ProcessInfo,
  ServiceEvent,
  SessionInfo,
  SignInLink,
  TeamMetric,
  TemplateInfo,
} from "./resources.ts";
export type { CallOptions, ClientOptions, Request, WebSocketClass, WebSocketLike } from "./transport.ts";
export { type FileChange, Watch, type WatchOptions } from "./watch.ts";
