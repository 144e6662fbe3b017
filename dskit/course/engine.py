"""papermill's nbclient engine, with an end to every cell.

papermill keeps the partial notebook when a cell raises, but not the reason when a cell is cut off at its
deadline or its kernel dies: the cell then looks as if it had passed. Here both become the cell's error
output, like an exception, and papermill reports all three in the same way.
"""

from contextlib import suppress

from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat.v4 import new_output
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines

from dskit.course.flood import Flood
from dskit.course.kernel import HereKernelManager

ENGINE = "dskit"
TIMEOUT = "CellTimeoutError"
DEAD = "DeadKernelError"


class CellCutOff(Exception):
    """The notebook stops here; the reason already stands in its cell."""


class Client(PapermillNotebookClient):
    def execute_cell(self, cell, cell_index, **kwargs):
        self._floods = {}
        try:
            return self._execute_to_its_end(cell, cell_index, **kwargs)
        finally:
            for name, flood in self._floods.items():
                if text := flood.ending():
                    cell.outputs.append(new_output("stream", name=name, text=text))

    def process_message(self, msg, cell, cell_index):
        if msg["msg_type"] == "stream":
            content = msg["content"]
            flood = self._floods.setdefault(content["name"], Flood())
            content["text"] = flood.take(content["text"])
            if not content["text"]:
                return None
        return super().process_message(msg, cell, cell_index)

    def _execute_to_its_end(self, cell, cell_index, **kwargs):
        deadline = f"the cell ran longer than its deadline of {self.timeout} s"
        try:
            return super().execute_cell(cell, cell_index, **kwargs)
        except CellExecutionError as error:
            if error.ename == TIMEOUT:  # interrupted in time: where it hung is in its outputs
                self._record(cell, TIMEOUT, deadline)
            raise
        except CellTimeoutError as error:  # did not answer the interrupt
            self._record(cell, TIMEOUT, f"{deadline} and did not answer the interrupt")
            self.nb_man.cell_exception(cell, cell_index=cell_index)
            raise CellCutOff from error
        except DeadKernelError as error:
            self._record(cell, DEAD, "the kernel died, killed by the system (out of memory?) or by the cell")
            self.nb_man.cell_exception(cell, cell_index=cell_index)
            raise CellCutOff from error

    def _record(self, cell, name, value):
        """Make this the cell's last error; the traceback of an interrupted cell stays with it."""
        raised = [output for output in cell.outputs if output.output_type == "error"]
        traceback = raised[-1].traceback if raised else []
        cell.outputs = [output for output in cell.outputs if output.output_type != "error"]
        cell.outputs.append(
            new_output("error", ename=name, evalue=value, traceback=[*traceback, f"{name}: {value}"])
        )


class Engine(NBClientEngine):
    @classmethod
    def execute_managed_notebook(
        cls, nb_man, kernel_name, *, cell_deadline, start_timeout, on_cell_execute, **_
    ):
        client = Client(
            nb_man,
            kernel_name=kernel_name,
            kernel_manager_class=HereKernelManager,
            timeout=cell_deadline,
            startup_timeout=start_timeout,
            interrupt_on_timeout=True,
            error_on_timeout={"ename": TIMEOUT, "evalue": "", "traceback": []},
            on_cell_execute=on_cell_execute,
        )
        with suppress(CellCutOff):
            client.execute()


papermill_engines.register(ENGINE, Engine)
