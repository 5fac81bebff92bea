"""A client made with the published Python SDK; drives an ACP agent and prints one JSON report.

usage: client.py first CWD -- COMMAND [ARG...]       a new session, one turn of every kind
       client.py second CWD ID -- COMMAND [ARG...]   another process loads that session and goes on

The turns are asked for in the words of `frontdesk demo-agent`, which our own `agent.py` and
`agent.mjs` speak, too. Nothing is judged here: the report says what happened.
"""
import asyncio
import json
import os
import sys

import acp
from acp import schema

ANSWER_S = 60  # longest wait for one answer
CANCEL_AFTER_S = 0.5


class Editor:
    """What an editor offers: permission answers, files, terminals."""

    def __init__(self):
        self.updates = []
        self.asked = []
        self.terminals = {}

    async def session_update(self, session_id, update, **kwargs):
        text = getattr(getattr(update, "content", None), "text", None)
        self.updates.append({"kind": update.session_update, "text": text, "session": session_id})

    async def request_permission(self, session_id, tool_call, options, **kwargs):
        self.asked.append("session/request_permission")
        allow = next(o for o in options if o.kind == "allow_once")
        return schema.RequestPermissionResponse(
            outcome=schema.AllowedOutcome(outcome="selected", option_id=allow.option_id)
        )

    async def write_text_file(self, session_id, path, content, **kwargs):
        self.asked.append("fs/write_text_file")
        with open(path, "w") as out:
            out.write(content)
        return schema.WriteTextFileResponse()

    async def read_text_file(self, session_id, path, line=None, limit=None, **kwargs):
        self.asked.append("fs/read_text_file")
        with open(path) as file:
            return schema.ReadTextFileResponse(content=file.read())

    async def create_terminal(self, session_id, command, args=None, env=None, cwd=None, **kwargs):
        self.asked.append("terminal/create")
        if args:
            start = asyncio.create_subprocess_exec(command, *args, cwd=cwd, **PIPES)
        else:
            start = asyncio.create_subprocess_shell(command, cwd=cwd, **PIPES)
        name = "term-%d" % len(self.terminals)
        self.terminals[name] = {"process": await start, "output": ""}
        return schema.CreateTerminalResponse(terminal_id=name)

    async def wait_for_terminal_exit(self, session_id, terminal_id, **kwargs):
        self.asked.append("terminal/wait_for_exit")
        term = self.terminals[terminal_id]
        out, _ = await term["process"].communicate()
        term["output"] += out.decode()
        return schema.WaitForTerminalExitResponse(exit_code=term["process"].returncode)

    async def terminal_output(self, session_id, terminal_id, **kwargs):
        self.asked.append("terminal/output")
        return schema.TerminalOutputResponse(output=self.terminals[terminal_id]["output"], truncated=False)

    async def release_terminal(self, session_id, terminal_id, **kwargs):
        self.asked.append("terminal/release")
        return schema.ReleaseTerminalResponse()

    async def kill_terminal(self, session_id, terminal_id, **kwargs):
        self.asked.append("terminal/kill")
        self.terminals[terminal_id]["process"].kill()
        return schema.KillTerminalResponse()

    async def ext_method(self, method, params):
        raise acp.RequestError.method_not_found(method)

    async def ext_notification(self, method, params):
        pass

    def on_connect(self, conn):
        pass


PIPES = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.STDOUT, "stdin": asyncio.subprocess.DEVNULL}


def plain(model):
    """A result as it would be on the wire."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def attempt(awaitable):
    """The result of a call, or its error, as plain data."""
    try:
        result = await asyncio.wait_for(awaitable, ANSWER_S)
        return {"result": plain(result) if hasattr(result, "model_dump") else result}
    except acp.RequestError as error:
        return {"error": {"code": error.code, "message": str(error), "data": error.data}}
    except ValueError as error:  # the SDK's models do not accept the result
        return {"unreadable": str(error)}


class Run:
    def __init__(self, conn, editor, cwd):
        self.conn, self.editor, self.cwd = conn, editor, cwd
        self.report = {}

    async def turn(self, name, session, words):
        """One prompt: its answer, the updates it brought, what the agent asked for."""
        updates, asked = len(self.editor.updates), len(self.editor.asked)
        answer = await attempt(self.conn.prompt(session_id=session, prompt=[acp.text_block(words)]))
        self.report[name] = dict(
            answer,
            updates=self.editor.updates[updates:],
            asked=self.editor.asked[asked:],
        )

    async def raw(self, name, method, params):
        """A method that the SDK has no function for."""
        self.report[name] = await attempt(self.conn._conn.send_request(method, params))

    async def hello(self):
        self.report["initialize"] = await attempt(
            self.conn.initialize(
                protocol_version=acp.PROTOCOL_VERSION,
                client_capabilities=schema.ClientCapabilities(
                    fs=schema.FileSystemCapabilities(read_text_file=True, write_text_file=True),
                    terminal=True,
                ),
                client_info=schema.Implementation(name="python-sdk", version="1"),
            )
        )

    async def first(self):
        await self.hello()
        made = await attempt(self.conn.new_session(cwd=self.cwd, mcp_servers=[]))
        self.report["new"] = made
        session = made["result"]["sessionId"]
        await self.turn("say", session, "say hello from python")
        await self.turn("stream", session, "stream 5 every 10")
        await self.turn("ask", session, "ask May I?")
        await self.turn("write", session, "write note.txt written-by-the-agent")
        await self.turn("read", session, "read note.txt")
        await self.turn("run", session, "run echo from-the-terminal")
        running = asyncio.create_task(self.turn("cancelled", session, "wait 60000"))
        await asyncio.sleep(CANCEL_AFTER_S)
        await self.raw("status_running", "session/status", {"sessionId": session})
        await self.conn.cancel(session_id=session)
        await running
        self.report["list"] = await attempt(self.conn.list_sessions(cwd=self.cwd))
        await self.raw("status", "session/status", {"sessionId": session})
        await self.raw("status_unknown", "session/status", {"sessionId": "no-such-session"})
        await self.raw("ext", "_nobody/knows", {})

    async def second(self, session):
        await self.hello()
        before = len(self.editor.updates)
        self.report["load"] = await attempt(
            self.conn.load_session(cwd=self.cwd, session_id=session, mcp_servers=[])
        )
        await asyncio.sleep(0.2)
        self.report["load"]["updates"] = self.editor.updates[before:]
        await self.turn("again", session, "say after the load")
        self.report["close"] = await attempt(self.conn.close_session(session_id=session))


async def main(argv):
    cut = argv.index("--")
    (phase, cwd, *rest), command = argv[:cut], argv[cut + 1:]
    editor = Editor()
    async with acp.spawn_agent_process(
        editor,
        *command,
        env=dict(os.environ),
        cwd=cwd,
        transport_kwargs={"limit": acp.core.DEFAULT_STDIO_BUFFER_LIMIT_BYTES},
        use_unstable_protocol=True,
    ) as (conn, process):
        run = Run(conn, editor, cwd)
        await (run.first() if phase == "first" else run.second(rest[0]))
        print(json.dumps(run.report))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
