// A client made with the published TypeScript SDK; drives an ACP agent and prints one JSON report.
//
// usage: node client.mjs first CWD -- COMMAND [ARG...]       a new session, one turn of every kind
//        node client.mjs second CWD ID -- COMMAND [ARG...]   another process loads it and goes on
//
// The folder of the installed SDK is named by the environment variable ACP_SDK. The turns are the
// same as in client.py. Nothing is judged here: the report says what happened.
import { spawn } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const acp = await import(pathToFileURL(join(process.env.ACP_SDK, "dist/acp.js")).href);
const CANCEL_AFTER_MS = 500;
// The SDK hands out a notification and the answer behind it in separate tasks, so an answer can be
// seen first; after this long all that came before it has been handed out.
const SETTLE_MS = 100;

const cut = process.argv.indexOf("--");
const [phase, cwd, known] = process.argv.slice(2, cut);
const [program, ...args] = process.argv.slice(cut + 1);

const updates = [];
const asked = [];
const terminals = new Map();

/** Starts a command the way an editor's terminal would. */
function openTerminal(params) {
  const child = params.args?.length
    ? spawn(params.command, params.args, { cwd: params.cwd ?? cwd })
    : spawn(params.command, { shell: true, cwd: params.cwd ?? cwd });
  const terminal = { child, output: "" };
  for (const stream of [child.stdout, child.stderr]) {
    stream.on("data", (data) => (terminal.output += data));
  }
  terminal.exit = new Promise((resolve) => child.on("close", (exitCode) => resolve({ exitCode })));
  const terminalId = `term-${terminals.size}`;
  terminals.set(terminalId, terminal);
  return { terminalId };
}

/** Registers one request handler that also notes that it was asked. */
function serve(app, method, handler) {
  return app.onRequest(method, (ctx) => {
    asked.push(method);
    return handler(ctx.params);
  });
}

function editor() {
  let app = acp.client({ name: "typescript-sdk" });
  app = serve(app, "session/request_permission", (params) => {
    const allow = params.options.find((option) => option.kind === "allow_once");
    return { outcome: { outcome: "selected", optionId: allow.optionId } };
  });
  app = serve(app, "fs/write_text_file", async (params) => {
    await writeFile(params.path, params.content);
    return {};
  });
  app = serve(app, "fs/read_text_file", async (params) => ({
    content: await readFile(params.path, "utf8"),
  }));
  app = serve(app, "terminal/create", openTerminal);
  app = serve(app, "terminal/wait_for_exit", (params) => terminals.get(params.terminalId).exit);
  app = serve(app, "terminal/output", (params) => ({
    output: terminals.get(params.terminalId).output,
    truncated: false,
  }));
  app = serve(app, "terminal/release", () => ({}));
  return app.onNotification("session/update", (ctx) => {
    const update = ctx.params.update;
    updates.push({
      kind: update.sessionUpdate,
      text: update.content?.text,
      session: ctx.params.sessionId,
    });
  });
}

const report = {};

/** The result of a call, or its error, as plain data. */
async function attempt(promise) {
  try {
    return { result: await promise };
  } catch (error) {
    return { error: { code: error.code, message: error.message, data: error.data } };
  }
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function hello(agent) {
  report.initialize = await attempt(
    agent.request("initialize", {
      protocolVersion: acp.PROTOCOL_VERSION,
      clientCapabilities: { fs: { readTextFile: true, writeTextFile: true }, terminal: true },
      clientInfo: { name: "typescript-sdk", version: "1" },
    }),
  );
}

async function turn(agent, name, sessionId, text) {
  const [from, before] = [updates.length, asked.length];
  const prompt = [{ type: "text", text }];
  const answer = await attempt(agent.request("session/prompt", { sessionId, prompt }));
  await pause(SETTLE_MS);
  report[name] = { ...answer, updates: updates.slice(from), asked: asked.slice(before) };
}

async function first(agent) {
  await hello(agent);
  report.new = await attempt(agent.request("session/new", { cwd, mcpServers: [] }));
  const { sessionId } = report.new.result;
  await turn(agent, "say", sessionId, "say hello from typescript");
  await turn(agent, "stream", sessionId, "stream 5 every 10");
  await turn(agent, "ask", sessionId, "ask May I?");
  await turn(agent, "write", sessionId, "write note.txt written-by-the-agent");
  await turn(agent, "read", sessionId, "read note.txt");
  await turn(agent, "run", sessionId, "run echo from-the-terminal");
  const running = turn(agent, "cancelled", sessionId, "wait 60000");
  await pause(CANCEL_AFTER_MS);
  report.status_running = await attempt(agent.request("session/status", { sessionId }));
  await agent.notify("session/cancel", { sessionId });
  await running;
  report.list = await attempt(agent.request("session/list", { cwd }));
  report.status = await attempt(agent.request("session/status", { sessionId }));
  report.status_unknown = await attempt(
    agent.request("session/status", { sessionId: "no-such-session" }),
  );
  report.ext = await attempt(agent.request("_nobody/knows", {}));
}

async function second(agent) {
  await hello(agent);
  const from = updates.length;
  const load = await attempt(
    agent.request("session/load", { sessionId: known, cwd, mcpServers: [] }),
  );
  await pause(SETTLE_MS);
  report.load = { ...load, updates: updates.slice(from) };
  await turn(agent, "again", known, "say after the load");
  report.close = await attempt(agent.request("session/close", { sessionId: known }));
}

const child = spawn(program, args, { cwd, stdio: ["pipe", "pipe", "inherit"] });
const stream = acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout));
await editor().connectWith(stream, (agent) => (phase === "first" ? first(agent) : second(agent)));
console.log(JSON.stringify(report));
child.stdin.end();
// An agent that stays after its stdin was closed is ended by its pid.
setTimeout(() => child.kill("SIGKILL"), 3000).unref();
child.on("exit", () => process.exit(0));
