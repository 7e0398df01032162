"""Opening a store: walking the log, telling a torn tail from damage, and what must hold before anyone is answered."""
