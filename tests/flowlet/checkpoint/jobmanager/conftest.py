from tests.flowlet.jm.conftest import address, client, connect, job_managers, start_job_manager

__all__ = ["address", "client", "connect", "job_managers", "start_job_manager"]
