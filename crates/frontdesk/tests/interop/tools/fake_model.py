#!/usr/bin/env python3
"""fake_model.py - a tiny fake model server for running real coding agents offline.

One process, standard library only, bound to 127.0.0.1.  It answers the model
APIs that coding agents speak, so an agent that lets its base URL be set can
run whole turns (text, a tool call, a slow stream, an error) with no key and no
network:

  OpenAI Chat Completions   POST */chat/completions          (SSE and plain)
  OpenAI Responses          POST */responses                 (SSE and plain)
  Anthropic Messages        POST */messages                  (SSE and plain)
                            POST */messages/count_tokens
  Gemini                    POST */models/NAME:generateContent
                            POST */models/NAME:streamGenerateContent
                            POST */models/NAME:countTokens
  Model lists               GET  */models[/NAME]
  anything else             200 {} (logged as "other")

What a turn does is chosen by the newest text the *user* wrote in the request:

  contains "slow N"    N text chunks, 0.1 s apart (without N: $FAKE_SLOW_CHUNKS,
                       100), for tests of session/cancel and of a running turn
  contains "fail"      HTTP 400 with the API's error shape (not retried by clients)
  contains "use tool"  first model call: one call of the agent's shell tool (or,
                       with "use write tool", of its file-writing tool); next
                       call, once a tool result came back: a closing text
  anything else        "Fake model says: <the user's text, cut at 80>"

The tool is picked from the tools the agent itself declares (by name), and its
arguments are built from that tool's own JSON schema, so nothing here is tied to
one agent.  The command run is `echo fake-tool-ran > fake_tool_out.txt`.

A file-writing tool gets the path fake_write_out.txt, below $FAKE_CWD if that is
set for this server (some agents want absolute paths).

Usage:  fake_model.py [--port 0] [--log FILE] [--port-file FILE]
Prints "listening on http://127.0.0.1:PORT" once ready; --port 0 takes a free
port.  Stop it with SIGTERM.
"""
import argparse
import json
import os
import re
import signal
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SLOW_CHUNKS = int(os.environ.get("FAKE_SLOW_CHUNKS", "100"))
SHELL_COMMAND = "echo fake-tool-ran > fake_tool_out.txt"
WRITE_TEXT = "written by the fake model\n"
SHELL_TOOLS = (
    "bash", "shell", "run_shell_command", "shell_command", "exec_command",
    "run_command", "execute_command", "run_terminal_cmd", "run_commands",
    "developer__shell", "local_shell", "container.exec", "terminal",
    "execute_bash", "execute", "run_in_terminal", "bash_tool",
)
WRITE_TOOLS = (
    "write", "write_file", "create_file", "write_to_file", "save", "edit_file",
    "create", "file_write", "apply_patch",
)
LOG_LOCK = threading.Lock()
LOG = None


def log(**entry):
    """Append one JSON line to the log file, if there is one."""
    if LOG is None:
        return
    entry["t"] = round(time.time(), 3)
    with LOG_LOCK:
        LOG.write(json.dumps(entry) + "\n")
        LOG.flush()


# --------------------------------------------------------------------------
# Reading requests: each API's body becomes (user_text, has_result, tools)
# --------------------------------------------------------------------------
NOISE = re.compile(r"<(system-reminder|environment_context|environment_details|"
                   r"user_instructions|INSTRUCTIONS|context|skills_instructions|permissions)"
                   r"[^>]*>.*?</\1[^>]*>", re.S | re.I)


def flat(content):
    """Text of a message's content, whatever shape the API gives it."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return str(content.get("text") or content.get("content") or "")
    return "\n".join(flat(part) for part in content
                     if not (isinstance(part, dict) and
                             part.get("type") in ("tool_result", "tool_use", "image")))


def is_user_words(text):
    """True where a user-role message holds something besides injected context."""
    return bool(NOISE.sub("", text).strip())


def read_openai_chat(body):
    user, result = "", False
    for msg in body.get("messages", []):
        role = msg.get("role")
        if role == "user":
            text = flat(msg.get("content"))
            if is_user_words(text):
                user, result = NOISE.sub("", text).strip(), False
        elif role in ("tool", "function"):
            result = True
    tools = []
    for tool in body.get("tools") or []:
        fn = tool.get("function") or tool
        tools.append((fn.get("name", ""), fn.get("parameters") or {}, "function"))
    return user, result, tools


def read_openai_responses(body):
    user, result = "", False
    items = body.get("input", [])
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    for item in items:
        kind = item.get("type", "message")
        if kind == "message" and item.get("role") == "user":
            text = flat(item.get("content"))
            if is_user_words(text):
                user, result = NOISE.sub("", text).strip(), False
        elif kind.endswith("_output"):
            result = True
    tools = []
    for tool in body.get("tools") or []:
        name = tool.get("name") or tool.get("type", "")
        tools.append((name, tool.get("parameters") or {}, tool.get("type", "function")))
    return user, result, tools


def read_anthropic(body):
    user, result = "", False
    for msg in body.get("messages", []):
        if msg.get("role") != "user":
            continue
        content = msg.get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        if any(b.get("type") == "tool_result" for b in blocks):
            result = True
            continue
        words = [NOISE.sub("", b.get("text") or "").strip() for b in blocks if b.get("type") == "text"]
        words = [w for w in words if w]
        if words:
            user, result = words[-1], False
    tools = [(t.get("name", ""), t.get("input_schema") or {}, "function")
             for t in body.get("tools") or []]
    return user, result, tools


def read_gemini(body):
    user, result = "", False
    contents = body.get("contents") or []
    if isinstance(contents, dict):
        contents = [contents]
    for msg in contents:
        if msg.get("role", "user") not in ("user", "function"):
            continue
        parts = msg.get("parts") or []
        if any("functionResponse" in p for p in parts):
            result = True
            continue
        text = "\n".join(p.get("text", "") for p in parts)
        if is_user_words(text):
            user, result = NOISE.sub("", text).strip(), False
    tools = []
    for group in body.get("tools") or []:
        for fn in group.get("functionDeclarations") or []:
            tools.append((fn.get("name", ""),
                          fn.get("parametersJsonSchema") or fn.get("parameters") or {}, "function"))
    return user, result, tools


# --------------------------------------------------------------------------
# Deciding what to answer
# --------------------------------------------------------------------------
def pick_tool(tools, names):
    by_name = {name.lower(): (name, schema, kind) for name, schema, kind in tools}
    for want in names:
        if want in by_name:
            return by_name[want]
    for want in names:
        for low, tool in by_name.items():
            if low.endswith("__" + want) or low.endswith("." + want) or low.endswith("_" + want):
                return tool
    return None


def fill(name, schema):
    """Arguments for one property, from its name and JSON schema."""
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((k for k in kind if k != "null"), "string")
    for alt in schema.get("anyOf") or schema.get("oneOf") or []:
        if kind is None and alt.get("type") != "null":
            return fill(name, alt)
    kind = (kind or "string").lower()
    low = name.lower()
    if low in ("command", "cmd", "commands", "script", "code", "bash_command"):
        if kind == "array":
            inner = (schema.get("items") or {}).get("type")
            if inner == "object":
                return [{"command": SHELL_COMMAND}]
            return [SHELL_COMMAND] if low == "commands" else ["bash", "-lc", SHELL_COMMAND]
        return SHELL_COMMAND
    if low in ("content", "text", "file_text", "contents"):
        return WRITE_TEXT
    if "path" in low or low in ("file", "filename"):
        return os.path.join(os.environ.get("FAKE_CWD", ""), "fake_write_out.txt")
    if schema.get("enum"):
        return schema["enum"][0]
    if kind == "boolean":
        return False
    if kind in ("integer", "number"):
        return 30
    if kind == "array":
        return []
    if kind == "object":
        return {}
    return "fake"


def tool_call(tools, user):
    names = WRITE_TOOLS if "use write tool" in user.lower() else SHELL_TOOLS
    found = pick_tool(tools, names) or pick_tool(tools, SHELL_TOOLS + WRITE_TOOLS)
    if not found:
        return None
    name, schema, kind = found
    props = schema.get("properties") or {}
    args = {p: fill(p, props.get(p) or {}) for p in (schema.get("required") or [])}
    if "sandbox_permissions" in props:        # codex: ask to leave its sandbox, so that it asks the client
        args.update(sandbox_permissions="require_escalated", justification="fake")
    for prop in ("command", "cmd", "description"):
        if prop in props and prop not in args and (prop == "description" or not
                                                   {"command", "cmd", "commands"} & set(args)):
            args[prop] = fill(prop, props[prop])
    return name, args, kind


def decide(api, user, has_result, tools):
    """('text', [chunks], pause) or ('tool', name, args, kind) or ('fail',)."""
    low = user.lower()
    if "fail" in low and "fake" not in low:
        return ("fail",)
    if "use tool" in low or "use write tool" in low:
        if has_result:
            return ("text", ["Fake model: ", "the tool has run. ", "Done."], 0.0)
        call = tool_call(tools, user)
        if call:
            return ("tool",) + call
        return ("text", ["Fake model: no shell or write tool was offered. Tools: "
                         + ", ".join(t[0] for t in tools)[:400]], 0.0)
    if "slow" in low:
        asked = re.search(r"slow (\d{1,4})", low)
        count = int(asked.group(1)) if asked else SLOW_CHUNKS
        return ("text", ["slow %d " % i for i in range(count)], 0.1)
    return ("text", ["Fake model ", "says: ", user[-80:]], 0.0)


# --------------------------------------------------------------------------
# Writing answers
# --------------------------------------------------------------------------
def rid(prefix):
    return prefix + uuid.uuid4().hex[:24]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "fake-model/1"

    def log_message(self, *_args):
        pass

    # -- plumbing
    def send_json(self, obj, status=200):
        data = json.dumps(obj).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def start_sse(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("cache-control", "no-cache")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

    def sse(self, obj, event=None):
        text = "" if event is None else "event: %s\n" % event
        text += "data: %s\n\n" % (obj if isinstance(obj, str) else json.dumps(obj))
        self.wfile.write(text.encode())
        self.wfile.flush()

    def read_body(self):
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            raw = b""
            while True:
                size = int(self.rfile.readline().split(b";")[0] or b"0", 16)
                raw += self.rfile.read(size)
                self.rfile.readline()
                if size == 0:
                    break
        else:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        enc = self.headers.get("content-encoding", "")
        if enc == "gzip":
            import gzip
            raw = gzip.decompress(raw)
        elif enc == "deflate":
            import zlib
            raw = zlib.decompress(raw)
        try:
            return json.loads(raw or b"{}")
        except ValueError:
            log(kind="not-json", encoding=enc, size=len(raw))
            return {}

    # -- routing
    def do_GET(self):
        path = self.path.split("?")[0].rstrip("/")
        log(kind="GET", path=self.path)
        model = {"id": "fake-model", "object": "model", "type": "model", "created": 1,
                 "owned_by": "fake", "display_name": "Fake", "context_length": 128000,
                 "max_model_len": 128000, "name": "models/fake-model"}
        if path.endswith("/models"):
            self.send_json({"object": "list", "data": [model], "models": [model], "has_more": False})
        elif "/models/" in path:
            self.send_json(model)
        else:
            self.send_json({})

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self):
        body = self.read_body()
        path = self.path.split("?")[0]
        try:
            if path.endswith("/chat/completions"):
                self.answer("chat", body, *read_openai_chat(body))
            elif path.endswith("/responses"):
                self.answer("responses", body, *read_openai_responses(body))
            elif path.endswith("/messages/count_tokens"):
                self.send_json({"input_tokens": 10})
            elif path.endswith("/messages"):
                self.answer("anthropic", body, *read_anthropic(body))
            elif path.endswith(":countTokens"):
                self.send_json({"totalTokens": 10})
            elif path.endswith(("enerateContent",)):
                self.answer("gemini", body, *read_gemini(body))
            else:
                log(kind="other", path=self.path)
                self.send_json({})
        except (BrokenPipeError, ConnectionResetError):
            log(kind="client-gone", path=path)

    do_PUT = do_POST

    def answer(self, api, body, user, has_result, tools):
        plan = decide(api, user, has_result, tools)
        stream = bool(body.get("stream")) or "streamGenerateContent" in self.path
        log(kind="POST", path=self.path, api=api, stream=stream, model=body.get("model"),
            user=user[-200:], has_result=has_result, tools=[t[0] for t in tools][:60],
            plan=[plan[0]] + [p for p in plan[1:3] if plan[0] == "tool"])
        if plan[0] == "fail":
            self.send_json({"type": "error", "error": {"type": "invalid_request_error", "code": 400,
                            "status": "INVALID_ARGUMENT", "message": "fake failure"}}, 400)
            return
        getattr(self, "do_" + api)(body, plan, stream)

    def chunks(self, plan):
        for piece in plan[1]:
            yield piece
            if plan[2]:
                time.sleep(plan[2])

    # -- OpenAI Chat Completions
    def do_chat(self, body, plan, stream):
        base = {"id": rid("chatcmpl-"), "created": int(time.time()),
                "model": body.get("model") or "fake-model"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        call = None
        if plan[0] == "tool":
            call = {"id": rid("call_"), "type": "function",
                    "function": {"name": plan[1], "arguments": json.dumps(plan[2])}}
        finish = "tool_calls" if call else "stop"
        if not stream:
            msg = {"role": "assistant", "content": None if call else "".join(plan[1])}
            if call:
                msg["tool_calls"] = [call]
            self.send_json(dict(base, object="chat.completion", usage=usage, choices=[
                {"index": 0, "message": msg, "finish_reason": finish}]))
            return
        self.start_sse()

        def send(delta, fin=None):
            self.sse(dict(base, object="chat.completion.chunk", choices=[
                {"index": 0, "delta": delta, "finish_reason": fin}]))
        send({"role": "assistant", "content": ""})
        if call:
            send({"tool_calls": [dict(call, index=0)]})
        else:
            for piece in self.chunks(plan):
                send({"content": piece})
        send({}, finish)
        self.sse(dict(base, object="chat.completion.chunk", choices=[], usage=usage))
        self.sse("[DONE]")

    # -- OpenAI Responses
    def do_responses(self, body, plan, stream):
        resp = {"id": rid("resp_"), "object": "response", "created_at": int(time.time()),
                "model": body.get("model") or "fake-model", "status": "in_progress", "output": [],
                "parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
        usage = {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 0},
                 "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 0},
                 "total_tokens": 15}
        if plan[0] == "tool":
            _, name, args, kind = plan
            if kind == "local_shell":
                item = {"type": "local_shell_call", "id": rid("lsh_"), "call_id": rid("call_"),
                        "status": "completed", "action": {"type": "exec", "command":
                                                          ["bash", "-lc", SHELL_COMMAND], "env": {}}}
            elif kind == "custom":
                item = {"type": "custom_tool_call", "id": rid("ctc_"), "call_id": rid("call_"),
                        "name": name, "input": SHELL_COMMAND, "status": "completed"}
            else:
                item = {"type": "function_call", "id": rid("fc_"), "call_id": rid("call_"),
                        "name": name, "arguments": json.dumps(args), "status": "completed"}
        else:
            item = {"type": "message", "id": rid("msg_"), "role": "assistant", "status": "completed",
                    "content": [{"type": "output_text", "text": "".join(plan[1]), "annotations": []}]}
        done = dict(resp, status="completed", output=[item], usage=usage)
        if not stream:
            self.send_json(done)
            return
        self.start_sse()
        seq = [0]

        def send(kind, **data):
            self.sse(dict(data, type=kind, sequence_number=seq[0]), kind)
            seq[0] += 1
        send("response.created", response=resp)
        if item["type"] == "message":
            send("response.output_item.added", output_index=0,
                 item=dict(item, status="in_progress", content=[]))
            send("response.content_part.added", item_id=item["id"], output_index=0, content_index=0,
                 part={"type": "output_text", "text": "", "annotations": []})
            for piece in self.chunks(plan):
                send("response.output_text.delta", item_id=item["id"], output_index=0,
                     content_index=0, delta=piece)
            send("response.output_text.done", item_id=item["id"], output_index=0, content_index=0,
                 text="".join(plan[1]))
        else:
            start = dict(item, status="in_progress")
            if "arguments" in item:
                start["arguments"] = ""
            send("response.output_item.added", output_index=0, item=start)
            if "arguments" in item:
                send("response.function_call_arguments.delta", item_id=item["id"], output_index=0,
                     delta=item["arguments"])
                send("response.function_call_arguments.done", item_id=item["id"], output_index=0,
                     arguments=item["arguments"])
        send("response.output_item.done", output_index=0, item=item)
        send("response.completed", response=done)

    # -- Anthropic Messages
    def do_anthropic(self, body, plan, stream):
        usage = {"input_tokens": 10, "output_tokens": 5, "cache_creation_input_tokens": 0,
                 "cache_read_input_tokens": 0}
        base = {"id": rid("msg_"), "type": "message", "role": "assistant",
                "model": body.get("model") or "fake-model", "content": [], "stop_reason": None,
                "stop_sequence": None, "usage": usage}
        if plan[0] == "tool":
            block = {"type": "tool_use", "id": rid("toolu_"), "name": plan[1], "input": plan[2]}
            stop = "tool_use"
        else:
            block = {"type": "text", "text": "".join(plan[1])}
            stop = "end_turn"
        if not stream:
            self.send_json(dict(base, content=[block], stop_reason=stop))
            return
        self.start_sse()

        def send(kind, **data):
            self.sse(dict(data, type=kind), kind)
        send("message_start", message=base)
        if plan[0] == "tool":
            send("content_block_start", index=0, content_block=dict(block, input={}))
            send("content_block_delta", index=0, delta={"type": "input_json_delta",
                                                        "partial_json": json.dumps(plan[2])})
        else:
            send("content_block_start", index=0, content_block={"type": "text", "text": ""})
            for piece in self.chunks(plan):
                send("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
        send("content_block_stop", index=0)
        send("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage=usage)
        send("message_stop")

    # -- Gemini
    def do_gemini(self, body, plan, stream):
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}

        def obj(part, fin=None):
            cand = {"index": 0, "content": {"role": "model", "parts": [part]}}
            if fin:
                cand["finishReason"] = fin
            return {"candidates": [cand], "usageMetadata": usage, "modelVersion": "fake-model",
                    "responseId": rid("r")}
        if plan[0] == "tool":
            out = [obj({"functionCall": {"name": plan[1], "args": plan[2]}}, "STOP")]
        elif not stream:
            schema = (body.get("generationConfig") or {}).get("responseJsonSchema")
            text = "".join(plan[1])
            if schema:   # structured answers, e.g. gemini-cli's model router and next-speaker check
                props = schema.get("properties") or {}
                text = json.dumps({k: fill(k, v) for k, v in props.items()})
            out = [obj({"text": text}, "STOP")]
        else:
            out = None
        if not stream:
            self.send_json(out[0])
            return
        self.start_sse()
        if out:
            for item in out:
                self.sse(item)
            return
        for piece in self.chunks(plan):
            self.sse(obj({"text": piece}))
        self.sse(obj({"text": ""}, "STOP"))


def main():
    global LOG
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--port", type=int, default=0)
    ap.add_argument("--log", help="append one JSON line a request to this file")
    ap.add_argument("--port-file", help="write the port to this file once listening")
    args = ap.parse_args()
    if args.log:
        LOG = open(args.log, "a")
    server = ThreadingHTTPServer(("127.0.0.1", args.port), Handler)
    server.daemon_threads = True
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if args.port_file:
        with open(args.port_file, "w") as f:
            f.write(str(server.server_port))
    print("listening on http://127.0.0.1:%d" % server.server_port, flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
